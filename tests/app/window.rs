//! Every panel and every key, driven as a person would.

use std::time::Instant;

use eframe::egui::accesskit::Role;
use eframe::egui::{Key, Modifiers};
use egui_kittest::kittest::{NodeT, Queryable};
use myna::action::Action;
use myna::player::{DeviceState, PlayState};
use myna::recorder::RecorderStatus;
use myna::settings_file::SettingsFile;
use myna::state::{JobState, ModelState, OnDeck, Settings, ThemeChoice, Tone, VoiceState};
use myna_engine::protocol::{AudioChunk, Command, Event, ModelSource, Precision};

use crate::fake::{Card, Setting, Stage, embedded, multilingual, sentences, stats, turbo, voice};

const CTRL: Modifiers = Modifiers::COMMAND;

fn chosen(stage: &Stage) -> String {
    stage.window.state().state().clip().unwrap().name.clone()
}

fn job(stage: &Stage) -> &JobState {
    &stage.window.state().state().job
}

fn press(stage: &mut Stage, modifiers: Modifiers, key: Key) {
    stage.window.key_press_modifiers(modifiers, key);
    stage.look();
}

fn click(stage: &mut Stage, label: &str) {
    stage.window.get_by_label(label).click();
    stage.look();
}

/// Opens a list to choose from.
fn open(stage: &mut Stage, label: &str) {
    stage.window.get_by_role_and_label(Role::ComboBox, label).click();
    stage.look();
}

/// Takes the keyboard from the editor.
fn leave_editor(stage: &mut Stage) {
    press(stage, Modifiers::NONE, Key::Escape);
}

fn wav(folder: &std::path::Path, name: &str, secs: f32) -> std::path::PathBuf {
    let path = folder.join(name);
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: 16_000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::create(&path, spec).unwrap();
    for i in 0..(secs * 16_000.0) as usize {
        let t = i as f32 / 16_000.0;
        let gate = if (t * 3.0).fract() < 0.7 { 1.0 } else { 0.001 };
        writer.write_sample(((t * 900.0).sin() * gate * 9000.0) as i16).unwrap();
    }
    writer.finalize().unwrap();
    path
}

#[test]
fn it_starts_by_loading_the_embedded_model_and_shows_how_far_it_is() {
    let mut stage = Stage::new();
    let Command::Load(request) = stage.command() else { panic!("not a Load") };
    assert_eq!(request.source, ModelSource::Embedded);
    stage.tell(Event::LoadProgress { fraction: 0.4, part: "S3Gen" });
    stage.until("progress", |app| matches!(app.state().model, ModelState::Loading { fraction, .. } if fraction == 0.4));
    stage.window.get_by_label("Loading 40 %");
    stage.window.get_by_label("Loading S3Gen");
    stage.tell(Event::Loaded(Box::new(embedded())));
    stage.until("the model", |app| app.state().model.info().is_some());
    stage.window.get_by_label("Myna embedded");
    let prepare = stage.told_prepare();
    assert_eq!(prepare.name, "Walter");
    assert!(prepare.clip.secs() > 6.0);
}

#[test]
fn from_a_fresh_start_it_takes_a_text_and_one_key_to_speak() {
    let mut stage = Stage::new().ready();
    assert!(stage.window.get_by_label("Speak").accesskit_node().is_disabled(), "there is no text yet");
    let speak = stage.speak("Hello there.");
    assert_eq!((speak.text.as_str(), speak.voice.name.as_str()), ("Hello there.", "Walter"));
    assert_eq!(speak.settings.steps, embedded().defaults.steps);
    stage.until("speaking", |app| matches!(app.state().job, JobState::Speaking(_)));
    for chunk in sentences(2.0, 1) {
        speak.audio.send(chunk).unwrap();
    }
    stage.tell(Event::Progress { job: speak.id, stats: stats(1.2, 1) });
    stage.until("figures", |app| app.state().job.stats().is_some_and(|s| s.rtf > 0.0));
    stage.window.get_by_label("Real time 0.31");
    stage.window.get_by_label("Tokens / s 143");
    stage.window.get_by_label_contains("T3 186 ms");
    stage.until("playing", |app| app.state().player.state == PlayState::Playing);
    stage.card.ask(4800);
    stage.until("the first sound", |app| app.state().player.first_audio.is_some());
    stage.tell(Event::Finished { job: speak.id, stats: stats(2.0, 1) });
    drop(speak);
    stage.until("the end", |app| matches!(app.state().job, JobState::Done(_)));
    for _ in 0..100 {
        stage.card.ask(1200);
        std::thread::sleep(std::time::Duration::from_millis(3));
    }
    stage.until("the end of playback", |app| app.state().player.state == PlayState::Ended);
    stage.window.get_by_label("Underruns 0");
    stage.window.get_by_label("Speak");
}

#[test]
fn asking_before_the_model_is_there_is_granted_when_it_is() {
    let mut stage = Stage::new();
    stage.told_load();
    stage.window.state_mut().act(Action::InsertTag("Early bird.".into()), Instant::now());
    stage.look();
    press(&mut stage, CTRL, Key::Enter);
    assert_eq!(*job(&stage), JobState::Waiting);
    stage.window.get_by_label("waiting for the model");
    stage.tell(Event::Loaded(Box::new(embedded())));
    let prepare = stage.told_prepare();
    stage.until("preparing", |app| app.state().voice == VoiceState::Preparing);
    stage.window.get_by_label("learning the voice");
    stage.tell(Event::VoiceReady { job: prepare.id, voice: voice("Walter"), ms: 9.0 });
    assert_eq!(stage.told_speak().text.trim(), "Early bird.");
}

#[test]
fn escape_stops_and_whatever_the_old_job_still_says_changes_nothing() {
    let mut stage = Stage::new().ready();
    let old = stage.speak("A long story.");
    old.audio.send(AudioChunk { samples: vec![0.1; 9600], sentence: 0, text_range: 0..5 }).unwrap();
    stage.until("sound", |app| app.state().player.state == PlayState::Playing);
    press(&mut stage, Modifiers::NONE, Key::Escape);
    assert!(old.cancel.is_cancelled());
    assert!(matches!(job(&stage), JobState::Stopped(_)));
    stage.until("quiet", |app| app.state().player.state == PlayState::Paused);
    stage.tell(Event::Progress { job: old.id, stats: stats(9.0, 1) });
    stage.tell(Event::Finished { job: old.id, stats: stats(9.0, 1) });
    stage.tell(Event::Failed { job: old.id, error: "late".into(), bad_input: false });
    std::thread::sleep(std::time::Duration::from_millis(50));
    stage.look();
    assert!(matches!(job(&stage), JobState::Stopped(_)), "{:?}", job(&stage));
    assert!(stage.window.state().state().notices.is_empty());
}

#[test]
fn a_new_utterance_cancels_the_one_before_and_is_not_mixed_with_it() {
    let mut stage = Stage::new().ready();
    let old = stage.speak("First.");
    old.audio.send(AudioChunk { samples: vec![0.1; 9600], sentence: 0, text_range: 0..5 }).unwrap();
    stage.until("sound", |app| app.state().take.as_ref().is_some_and(|take| take.len() == 9600));
    press(&mut stage, CTRL, Key::Enter);
    let new = stage.told_speak();
    assert!(old.cancel.is_cancelled() && !new.cancel.is_cancelled());
    assert_ne!(old.id, new.id);
    let _ = old.audio.send(AudioChunk { samples: vec![0.2; 4800], sentence: 0, text_range: 0..5 });
    stage.tell(Event::Cancelled { job: old.id });
    stage.tell(Event::Started { job: new.id });
    new.audio.send(AudioChunk { samples: vec![0.3; 2400], sentence: 0, text_range: 0..5 }).unwrap();
    stage.until("the new sound", |app| app.state().take.as_ref().is_some_and(|take| take.len() == 2400));
    assert!(stage.window.state().state().job.is_busy());
    assert!(stage.window.state().state().take.as_ref().unwrap().to_pcm().samples.iter().all(|s| *s == 0.3));
}

#[test]
fn space_plays_and_holds_unless_somebody_is_typing() {
    let mut stage = Stage::new().ready();
    stage.spoken("Words", 2.0);
    assert_eq!(stage.window.state().state().settings.text, "Words");
    stage.until("playing", |app| app.state().player.state == PlayState::Playing);
    stage.window.get_by_label("Text to speak").type_text(" ");
    press(&mut stage, Modifiers::NONE, Key::Space);
    assert_eq!(stage.window.state().state().player.state, PlayState::Playing, "a space was typed");
    stage.window.state_mut().act(Action::TogglePlay, Instant::now());
    stage.until("held", |app| app.state().player.state == PlayState::Paused);
    leave_editor(&mut stage);
    stage.until("the start", |app| app.state().player.position_secs == 0.0);
    press(&mut stage, Modifiers::NONE, Key::Space);
    stage.until("playing", |app| app.state().player.state == PlayState::Playing);
    press(&mut stage, Modifiers::NONE, Key::Space);
    stage.until("held", |app| app.state().player.state == PlayState::Paused);
    click(&mut stage, "Play (Space)");
    stage.until("playing", |app| app.state().player.state == PlayState::Playing);
    click(&mut stage, "Pause (Space)");
    stage.until("held", |app| app.state().player.state == PlayState::Paused);
}

#[test]
fn the_waveform_seeks_by_click_and_by_arrow_and_replay_goes_to_the_start() {
    let mut stage = Stage::new().ready();
    stage.spoken("Two sentences. Here they are.", 4.0);
    click(&mut stage, "Stop (Esc)");
    stage.until("held", |app| app.state().player.state == PlayState::Paused);
    click(&mut stage, "Speech, 0:00.0 of 0:04.0");
    stage.until("the middle", |app| (app.state().player.position_secs - 2.0).abs() < 0.02);
    stage.window.get_by_label("Speech, 0:02.0 of 0:04.0").focus();
    stage.look();
    stage.window.key_press(Key::ArrowRight);
    stage.until("a second on", |app| (app.state().player.position_secs - 3.0).abs() < 0.02);
    stage.window.key_press(Key::Home);
    stage.until("the start", |app| app.state().player.position_secs == 0.0);
    stage.window.state_mut().act(Action::Seek(1.5), Instant::now());
    click(&mut stage, "Replay from the start");
    stage.until("playing from the start", |app| {
        app.state().player.state == PlayState::Playing && app.state().player.position_secs == 0.0
    });
}

#[test]
fn a_failure_is_said_in_words_and_the_next_try_clears_it() {
    let mut stage = Stage::new().ready();
    let first = stage.speak("Too much.");
    stage.tell(Event::Failed { job: first.id, error: "The text is too long; shorten it.".into(), bad_input: true });
    drop(first);
    stage.until("the failure", |app| matches!(app.state().job, JobState::Failed(_)));
    stage.window.get_by_label("The text is too long; shorten it.");
    stage.window.get_by_label("Close this message");
    press(&mut stage, CTRL, Key::Enter);
    stage.told_speak();
    assert!(stage.window.query_by_label("The text is too long; shorten it.").is_none());
}

#[test]
fn a_message_can_be_closed() {
    let mut stage = Stage::new().ready();
    let failing = stage.speak("Oh.");
    stage.tell(Event::Failed { job: failing.id, error: "It went wrong.".into(), bad_input: false });
    stage.until("the message", |app| !app.state().notices.is_empty());
    click(&mut stage, "Close this message");
    assert!(stage.window.query_by_label("It went wrong.").is_none());
}

#[test]
fn a_model_that_cannot_be_loaded_is_explained_and_another_can_be_chosen() {
    let mut stage = Stage::new();
    stage.told_load();
    stage.tell(Event::LoadFailed { error: "/models/x: t3_cfg.safetensors is missing".into() });
    stage.until("the failure", |app| matches!(app.state().model, ModelState::Failed(_)));
    stage.window.get_by_label("/models/x: t3_cfg.safetensors is missing");
    click(&mut stage, "Try again");
    stage.told_load();
    stage.tell(Event::LoadFailed { error: "still missing".into() });
    stage.until("the failure", |app| matches!(app.state().model, ModelState::Failed(_)));
    stage.answers.next.lock().unwrap().push_back(Some("/models/turbo".into()));
    click(&mut stage, "Choose a model");
    click(&mut stage, "Choose a folder…");
    let Command::Load(request) = stage.command() else { panic!("not a Load") };
    assert_eq!(request.source, ModelSource::Folder("/models/turbo".into()));
    stage.tell(Event::Loaded(Box::new(turbo())));
    stage.until("the model", |app| app.state().model.info().is_some());
    stage.window.get_by_label("Chatterbox Turbo");
}

#[test]
fn events_of_a_model_that_is_no_longer_wanted_are_ignored() {
    let mut stage = Stage::new();
    stage.told_load();
    stage.window.state_mut().act(Action::Precision(Precision::Int8), Instant::now());
    let Command::Load(request) = stage.command() else { panic!("not a Load") };
    assert_eq!(request.precision, Precision::Int8);
    stage.tell(Event::LoadProgress { fraction: 0.9, part: "old" });
    stage.tell(Event::Loaded(Box::new(turbo())));
    stage.tell(Event::LoadProgress { fraction: 0.2, part: "new" });
    stage.until("the new one", |app| matches!(app.state().model, ModelState::Loading { part: "new", .. }));
    stage.tell(Event::Loaded(Box::new(embedded())));
    stage.until("the model", |app| app.state().model.info().is_some());
    stage.window.get_by_label("Myna embedded");
}

#[test]
fn the_engine_giving_up_its_model_is_shown() {
    let mut stage = Stage::new().ready();
    let speak = stage.speak("Hm.");
    stage.tell(Event::Failed { job: speak.id, error: "internal error: a defect".into(), bad_input: false });
    stage.tell(Event::Unloaded);
    stage.until("no model", |app| matches!(app.state().model, ModelState::Absent));
    click(&mut stage, "Load again");
    stage.told_load();
}

#[test]
fn another_voice_is_prepared_once_and_then_remembered() {
    let mut stage = Stage::new().ready();
    click(&mut stage, "Nora");
    let nora = stage.told_prepare();
    assert_eq!((chosen(&stage).as_str(), nora.name.as_str()), ("Nora", "Nora"));
    stage.window.get_by_label("Learning the voice…");
    click(&mut stage, "Grace");
    let grace = stage.told_prepare();
    assert!(nora.cancel.is_cancelled());
    stage.tell(Event::Cancelled { job: nora.id });
    stage.tell(Event::VoiceReady { job: grace.id, voice: voice("Grace"), ms: 70.0 });
    stage.until("Grace", |app| app.state().voice == VoiceState::Ready { ms: 70.0 });
    click(&mut stage, "Walter");
    stage.until("Walter", |app| matches!(app.state().voice, VoiceState::Ready { .. }));
    let speak = stage.speak("Hi.");
    assert_eq!(speak.voice.name, "Walter", "prepared before, not again");
}

#[test]
fn a_voice_that_cannot_be_learned_says_why_and_cannot_speak() {
    let mut stage = Stage::new();
    stage.told_load();
    stage.tell(Event::Loaded(Box::new(embedded())));
    let prepare = stage.told_prepare();
    stage.tell(Event::Failed { job: prepare.id, error: "The clip is silent; choose another.".into(), bad_input: true });
    stage.until("the failure", |app| matches!(app.state().voice, VoiceState::Failed(_)));
    stage.window.get_by_label("The clip is silent; choose another.");
    stage.window.get_by_label("Text to speak").focus();
    stage.look();
    stage.window.get_by_label("Text to speak").type_text("Hi");
    stage.look();
    assert!(stage.window.get_by_label("Speak").accesskit_node().is_disabled());
}

#[test]
fn a_clip_is_opened_read_judged_trimmed_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = wav(folder.path(), "aunt.wav", 8.0);
    let mut stage = Stage::new().ready();
    stage.answers.next.lock().unwrap().push_back(Some(path.clone()));
    press(&mut stage, CTRL, Key::O);
    let prepare = stage.told_prepare();
    assert_eq!(prepare.name, "aunt");
    assert!((prepare.clip.secs() - 8.0).abs() < 1e-3);
    stage.until("the report", |app| app.state().clip().unwrap().report.is_some());
    stage.window.get_by_label_contains("follows a human voice only roughly");
    stage.window.get_by_label("Start of the used part").focus();
    stage.look();
    stage.window.key_press(Key::ArrowRight);
    stage.until("trimmed", |app| app.state().clip().unwrap().trim.start == 1.0);
    let again = stage.told_prepare();
    assert!((again.clip.secs() - 7.0).abs() < 1e-2);
    stage.window.get_by_label("7.0 of 8.0 s");
    assert_eq!(stage.window.state().state().settings.clips, [path]);
    click(&mut stage, "Remove aunt");
    assert_eq!(chosen(&stage), "Walter");
    assert!(stage.window.state().state().settings.clips.is_empty());
}

#[test]
fn the_handles_of_a_clip_are_dragged() {
    let mut stage = Stage::new().ready();
    let end = stage.window.get_by_label("End of the used part").rect().center();
    stage.window.drag_at(end);
    stage.window.step();
    stage.window.hover_at(end - eframe::egui::vec2(80.0, 0.0));
    stage.window.step();
    stage.window.drop_at(end - eframe::egui::vec2(80.0, 0.0));
    stage.look();
    let trim = stage.window.state().state().clip().unwrap().trim.clone();
    assert!(trim.start == 0.0 && trim.end > 3.0 && trim.end < 7.0, "{trim:?}");
    let again = stage.told_prepare();
    assert!((again.clip.secs() - trim.end).abs() < 0.01, "learned once, when the hand let go");
    assert!(stage.commands.is_empty());
}

#[test]
fn a_file_that_is_no_sound_is_refused_in_words_and_nothing_breaks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("letter.wav");
    std::fs::write(&path, "Dear aunt, this is not a recording.").unwrap();
    let mut stage = Stage::new().ready();
    stage.window.state_mut().act(Action::DropFiles(vec![path]), Instant::now());
    stage.until("the refusal", |app| !app.state().notices.is_empty());
    let state = stage.window.state().state();
    assert!(state.notices[0].text.contains("letter.wav is not an audio file"), "{:?}", state.notices);
    assert_eq!(state.voice, VoiceState::Unprepared);
    stage.window.get_by_label("Walter").scroll_to_me();
    stage.look();
    click(&mut stage, "Walter");
    stage.until("Walter", |app| matches!(app.state().voice, VoiceState::Ready { .. }));
}

#[test]
fn the_clip_can_be_heard_and_the_speech_is_there_again_afterwards() {
    let mut stage = Stage::new().ready();
    stage.spoken("Words", 2.0);
    click(&mut stage, "Hear the clip");
    let on_clip = |app: &myna::app::App| matches!(app.state().on_deck, OnDeck::Clip(_));
    stage.until("the clip", |app| {
        let player = &app.state().player;
        on_clip(app) && player.state == PlayState::Playing && player.buffer_secs > 6.0
    });
    click(&mut stage, "Stop the clip");
    assert_eq!(stage.window.state().state().on_deck, OnDeck::Speech);
    stage.until("the speech", |app| (app.state().player.buffer_secs - 2.0).abs() < 0.01);
    stage.window.get_by_label("Hear the clip");
}

#[test]
fn recording_counts_down_records_and_becomes_a_voice() {
    let mut stage = Stage::new().ready();
    click(&mut stage, "Record a voice (Ctrl+R)");
    stage.until("the countdown", |app| matches!(app.state().recorder, RecorderStatus::Countdown { .. }));
    stage.window.get_by_label_contains("Get ready");
    stage
        .until("recording", |app| matches!(app.state().recorder, RecorderStatus::Recording { secs, .. } if secs > 0.3));
    stage.window.get_by_label_contains("Level -");
    click(&mut stage, "Keep");
    stage.until("the voice", |app| app.state().clip().unwrap().name == "Recording 1");
    let prepare = stage.told_prepare();
    assert_eq!((prepare.clip.sample_rate_hz, prepare.name.as_str()), (16_000, "Recording 1"));
    assert!(prepare.clip.samples.iter().any(|s| s.abs() > 0.3));
}

#[test]
fn recordings_are_files_that_are_there_the_next_time() {
    let folder = tempfile::tempdir().unwrap();
    let recordings = Some(folder.path().join("recordings"));
    let mut stage = Stage::with(Setting { recordings, ..Setting::default() }).ready();
    press(&mut stage, CTRL, Key::R);
    stage
        .until("recording", |app| matches!(app.state().recorder, RecorderStatus::Recording { secs, .. } if secs > 0.2));
    press(&mut stage, CTRL, Key::R);
    stage.until("the voice", |app| app.state().clip().unwrap().name == "Recording 1");
    let path = folder.path().join("recordings/Recording 1.wav");
    assert_eq!(stage.window.state().state().settings.clips, std::slice::from_ref(&path));
    let prepare = stage.told_prepare();
    assert_eq!(prepare.clip, myna::audio_file::decode(&path).unwrap());
}

#[test]
fn a_recording_can_be_given_up_and_an_absent_microphone_is_said() {
    let mut stage = Stage::new().ready();
    click(&mut stage, "Record a voice (Ctrl+R)");
    stage.until("the countdown", |app| app.state().recorder != RecorderStatus::Idle);
    click(&mut stage, "Cancel");
    stage.until("idle", |app| app.state().recorder == RecorderStatus::Idle);
    assert_eq!(chosen(&stage), "Walter");
    stage.mic.lock().unwrap().absent = true;
    click(&mut stage, "Record a voice (Ctrl+R)");
    stage.until("the message", |app| !app.state().notices.is_empty());
    stage.window.get_by_label("Nothing was recorded: this system has no microphone");
}

#[test]
fn tags_go_where_the_cursor_is() {
    let mut stage = Stage::new().ready_with(turbo());
    stage.window.get_by_label("Text to speak").focus();
    stage.look();
    stage.window.get_by_label("Text to speak").type_text("Well");
    stage.look();
    click(&mut stage, "[laugh]");
    stage.window.get_by_label("Text to speak").type_text("then.");
    stage.look();
    assert_eq!(stage.window.state().state().settings.text, "Well [laugh] then.");
    assert!(stage.window.query_by_label("Exaggeration").is_none(), "Turbo has no guidance");
}

#[test]
fn the_language_is_chosen_where_there_are_several() {
    let mut stage = Stage::new().ready_with(multilingual());
    open(&mut stage, "Language");
    click(&mut stage, "German");
    assert_eq!(stage.window.state().state().speak().language.as_deref(), Some("de"));
    assert_eq!(stage.speak("Guten Tag.").settings.language.as_deref(), Some("de"));
}

#[test]
fn settings_reach_the_engine_and_the_defaults_are_a_click_away() {
    let mut stage = Stage::new().ready();
    stage.window.get_by_role_and_label(Role::Slider, "Guidance").set_value_accesskit(0.0);
    stage.look();
    stage.window.get_by_role_and_label(Role::Slider, "Steps").set_value_accesskit(4.0);
    stage.look();
    click(&mut stage, "Keep this seed");
    click(&mut stage, "Another seed");
    let seed = stage.window.state().state().speak().seed;
    let speak = stage.speak("One.");
    assert_eq!((speak.settings.cfg_weight, speak.settings.steps, speak.settings.seed), (0.0, 4, seed));
    press(&mut stage, CTRL, Key::Enter);
    assert_eq!(stage.told_speak().settings.seed, seed, "the seed is locked");
    click(&mut stage, "Draw a new seed each time");
    press(&mut stage, CTRL, Key::Enter);
    assert_ne!(stage.told_speak().settings.seed, seed);
    click(&mut stage, "Defaults");
    let now = stage.window.state().state().speak();
    assert_eq!((now.cfg_weight, now.steps), (0.5, 2));
    assert!(stage.window.get_by_label("Defaults").accesskit_node().is_disabled());
}

#[test]
fn precision_and_device_load_the_model_anew() {
    let mut stage = Stage::new().ready();
    open(&mut stage, "Precision");
    click(&mut stage, "8-bit integers");
    let Command::Load(request) = stage.command() else { panic!("not a Load") };
    assert_eq!(request.precision, Precision::Int8);
    assert!(matches!(stage.window.state().state().model, ModelState::Loading { .. }));
    stage.tell(Event::Loaded(Box::new(embedded())));
    stage.told_prepare();
}

#[test]
fn it_saves_what_was_made_and_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let mut stage = Stage::new().ready();
    assert!(stage.window.get_by_label("Save").accesskit_node().is_disabled());
    stage.spoken("It was a bright cold day in April", 2.0);
    for (name, seconds) in [("speech.wav", 2.0), ("other", 2.0)] {
        let path = folder.path().join(name);
        stage.answers.next.lock().unwrap().push_back(Some(path.clone()));
        press(&mut stage, CTRL, Key::S);
        stage.until("saved", |app| app.state().notices.back().is_some_and(|n| n.text.contains(name)));
        let back = myna::audio_file::decode(&path.with_extension("wav")).unwrap();
        assert_eq!((back.sample_rate_hz, back.secs()), (24_000, seconds));
        assert_eq!(stage.window.state().state().notices.back().unwrap().tone, Tone::Good);
    }
    assert_eq!(stage.answers.asked.lock().unwrap()[0], "save It was a bright cold.wav");
    stage.answers.next.lock().unwrap().push_back(Some(folder.path().join("not/there.wav")));
    press(&mut stage, CTRL, Key::S);
    stage.until("refused", |app| app.state().notices.back().is_some_and(|n| n.tone == Tone::Bad));
}

#[test]
fn saved_files_can_be_of_another_kind_and_rate() {
    let folder = tempfile::tempdir().unwrap();
    let mut stage = Stage::new().ready();
    stage.spoken("Hello", 1.0);
    click(&mut stage, "Format of saved files");
    click(&mut stage, "FLAC");
    click(&mut stage, "48 kHz");
    click(&mut stage, "Even loudness (−16 LUFS)");
    press(&mut stage, Modifiers::NONE, Key::Escape);
    let path = folder.path().join("x.flac");
    stage.answers.next.lock().unwrap().push_back(Some(path.clone()));
    click(&mut stage, "Save");
    stage.until("saved", |app| !app.state().notices.is_empty());
    let back = myna::audio_file::decode(&path).unwrap();
    assert_eq!((back.sample_rate_hz, back.samples.len()), (48_000, 48_000));
    let lufs = myna_engine::dsp::loudness::integrated_loudness(&back.samples, 48_000).unwrap();
    assert!((lufs + 16.0).abs() < 0.5, "{lufs}");
}

#[test]
fn without_a_sound_device_it_speaks_and_saves_all_the_same() {
    let card = Card::default();
    *card.absent.lock().unwrap() = true;
    let mut stage = Stage::with(Setting { card, ..Setting::default() }).ready();
    stage.until("no device", |app| matches!(app.state().player.device, DeviceState::Missing { .. }));
    stage.window.get_by_label_contains("this system has no sound device");
    stage.spoken("Silent film", 1.0);
    stage.window.get_by_label("no sound device; saving works");
    assert!(!stage.window.get_by_label("Save").accesskit_node().is_disabled());
}

#[test]
fn sound_devices_can_be_chosen() {
    let mut stage = Stage::new().ready();
    open(&mut stage, "Output");
    stage.until("the list", |app| !app.state().player.devices.is_empty());
    click(&mut stage, "Loudspeaker");
    stage.until("the device", |app| {
        app.state().player.device == DeviceState::Ready { name: "Loudspeaker".into(), rate_hz: 24_000 }
    });
    assert_eq!(stage.window.state().state().settings.output.as_deref(), Some("fake:a"));
}

#[test]
fn theme_settings_panel_and_volume_obey() {
    let mut stage = Stage::new().ready();
    click(&mut stage, "Theme");
    click(&mut stage, "Light");
    assert_eq!(stage.window.state().state().settings.theme, ThemeChoice::Light);
    assert!(!stage.window.ctx.global_style().visuals.dark_mode);
    click(&mut stage, "Hide settings");
    assert!(stage.window.query_by_label("Exaggeration").is_none());
    click(&mut stage, "Show settings");
    stage.window.get_by_label("Volume").set_value_accesskit(0.5);
    stage.look();
    assert!((stage.window.state().state().settings.volume - 0.5).abs() < 0.01);
}

#[test]
fn what_was_typed_and_chosen_is_there_the_next_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = SettingsFile::at(folder.path().join("settings.json"));
    let mut stage = Stage::with(Setting { file: Some(file.clone()), ..Setting::default() }).ready();
    click(&mut stage, "Pip");
    let prepare = stage.told_prepare();
    stage.tell(Event::VoiceReady { job: prepare.id, voice: voice("Pip"), ms: 1.0 });
    stage.speak("Remember me.");
    drop(stage);
    let mut stage = Stage::with(Setting { file: Some(file), ..Setting::default() });
    stage.told_load();
    assert_eq!(chosen(&stage), "Pip");
    assert_eq!(stage.window.state().state().settings.text, "Remember me.");
    assert_eq!(stage.window.get_by_role(Role::MultilineTextInput).value().as_deref(), Some("Remember me."));
}

#[test]
fn broken_settings_are_set_aside_and_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("settings.json");
    std::fs::write(&path, "{ half a file").unwrap();
    let mut stage = Stage::with(Setting { file: Some(SettingsFile::at(&path)), ..Setting::default() });
    stage.look();
    stage.window.get_by_label_contains("Your settings could not be read");
    assert_eq!(
        stage.window.state().state().settings,
        Settings { window: stage.window.state().state().settings.window, ..Settings::default() }
    );
}

#[test]
fn an_engine_that_is_gone_is_an_error_and_not_a_crash() {
    let mut stage = Stage::new().ready();
    let (_, nobody) = crossbeam_channel::unbounded();
    drop(std::mem::replace(&mut stage.commands, nobody));
    stage.window.state_mut().act(Action::ReloadModel, Instant::now());
    stage.look();
    stage.window.get_by_label("The engine has stopped. Please start Myna again.");
}

#[test]
fn an_idle_window_does_not_repaint() {
    let mut stage = Stage::new().ready();
    stage.spoken("Done", 0.5);
    click(&mut stage, "Stop (Esc)");
    stage.until("held", |app| app.state().player.state == PlayState::Paused);
    // One more for the settings, which are written a while after they changed.
    std::thread::sleep(std::time::Duration::from_millis(50));
    stage.window.run_steps(10);
    let asked = stage.window.output().viewport_output.values().map(|v| v.repaint_delay).min().unwrap();
    assert!(asked >= std::time::Duration::from_secs(1), "it wants to be painted again in {asked:?}");
}

#[test]
fn every_control_can_be_reached_by_the_keyboard() {
    let mut stage = Stage::new().ready();
    stage.spoken("Reach", 1.0);
    leave_editor(&mut stage);
    let mut reached = std::collections::BTreeSet::new();
    for _ in 0..80 {
        stage.window.key_press(Key::Tab);
        stage.window.step();
        let focused = stage.window.ctx.memory(|memory| memory.focused());
        reached.extend(focused.map(|id| format!("{id:?}")));
    }
    assert!(reached.len() >= 30, "only {} controls", reached.len());
    let mut hit = false;
    for _ in 0..80 {
        stage.window.key_press(Key::Tab);
        stage.window.step();
        if stage.window.get_by_label("Nora").is_focused() {
            hit = true;
            break;
        }
    }
    assert!(hit, "a voice has its turn");
    stage.window.key_press(Key::Enter);
    stage.look();
    assert_eq!(chosen(&stage), "Nora");
}
