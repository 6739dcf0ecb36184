//! Speaking, playing, stopping; the model and what can become of it.

use std::time::Instant;

use eframe::egui::{Key, Modifiers};
use egui_kittest::kittest::{NodeT, Queryable};
use myna::action::Action;
use myna::player::{DeviceState, PlayState};
use myna::state::{JobState, ModelState, Offers, VoiceState};
use myna_engine::protocol::{AudioChunk, Command, Event, ModelSource, Precision};

use crate::fake::{Setting, Stage, embedded, sentences, stats, turbo, voice};
use crate::hand::{CTRL, click, job, leave_editor, press};

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
    for _ in 0..250 {
        stage.card.ask(240);
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
    stage.window.get_by_label("/models/x: t3_cfg.safetensors is missing.");
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
    let offers = Offers { precisions: vec![Precision::F32, Precision::Int8], ..Offers::default() };
    let mut stage = Stage::with(Setting { offers, ..Setting::default() });
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
fn an_engine_that_is_gone_is_an_error_and_not_a_crash() {
    let mut stage = Stage::new().ready();
    let (_, nobody) = crossbeam_channel::unbounded();
    drop(std::mem::replace(&mut stage.commands, nobody));
    stage.window.state_mut().act(Action::ReloadModel, Instant::now());
    stage.look();
    stage.window.get_by_label("The engine has stopped. Please start Myna again.");
}

#[test]
fn a_new_person_types_at_once_and_presses_one_key() {
    let mut stage = Stage::new().ready();
    assert!(stage.window.get_by_label("Text to speak").is_focused(), "the editor has the keyboard from the start");
    stage.window.event(eframe::egui::Event::Text("My own words.".into()));
    stage.look();
    press(&mut stage, CTRL, Key::Enter);
    let speak = stage.told_speak();
    assert_eq!((speak.text.as_str(), speak.voice.name.as_str()), ("My own words.", "Walter"));
}

#[test]
fn who_has_no_words_takes_an_example_and_it_can_be_edited() {
    let mut stage = Stage::new().ready();
    stage.window.get_by_label_contains("The ferry leaves").click();
    stage.look();
    assert!(stage.window.query_by_label("Or try one of these").is_none(), "they are only there while there is no text");
    stage.window.event(eframe::egui::Event::Text(" Thank you.".into()));
    stage.look();
    click(&mut stage, "Speak");
    assert_eq!(stage.told_speak().text, "The ferry leaves at a quarter past nine, so please be early. Thank you.");
}

#[test]
fn the_loudspeaker_is_unplugged_while_it_speaks_and_comes_back() {
    let mut stage = Stage::new().ready();
    let speak = stage.speak("A long story, told to nobody.");
    for chunk in sentences(3.0, 1) {
        speak.audio.send(chunk).unwrap();
    }
    stage.until("playing", |app| app.state().player.state == PlayState::Playing);
    stage.card.unplug();
    stage.until("no device", |app| matches!(app.state().player.device, DeviceState::Missing { .. }));
    stage.window.get_by_label("no sound device; saving works");
    stage.tell(Event::Finished { job: speak.id, stats: stats(3.0, 1) });
    drop(speak);
    stage.until("the end", |app| matches!(app.state().job, JobState::Done(_)));
    assert_eq!(stage.window.state().state().take.as_ref().unwrap().secs(), 3.0, "nothing of the take is lost");
    assert!(!stage.window.get_by_label("Save").accesskit_node().is_disabled());
    *stage.card.absent.lock().unwrap() = false;
    stage.window.state_mut().act(Action::Replay, Instant::now());
    stage.until("a device", |app| matches!(app.state().player.device, DeviceState::Ready { .. }));
}

#[test]
fn a_voice_that_fails_while_another_speaks_does_not_end_the_speech() {
    let mut stage = Stage::new().ready();
    let speak = stage.speak("Walter goes on.");
    stage.until("speaking", |app| matches!(app.state().job, JobState::Speaking(_)));
    click(&mut stage, "Nora");
    let nora = stage.told_prepare();
    stage.tell(Event::Failed { job: nora.id, error: "The clip is silent; choose another.".into(), bad_input: true });
    stage.until("the failure", |app| matches!(app.state().voice, VoiceState::Failed(_)));
    assert!(matches!(job(&stage), JobState::Speaking(_)), "{:?}", job(&stage));
    stage.tell(Event::Failed { job: speak.id, error: "It went wrong.".into(), bad_input: false });
    stage.until("the other failure", |app| matches!(app.state().job, JobState::Failed(_)));
    assert_eq!(stage.window.state().state().voice, VoiceState::Failed("The clip is silent; choose another.".into()));
}

#[test]
fn a_speech_that_fails_while_a_voice_is_learned_is_the_failure_of_the_speech() {
    let mut stage = Stage::new().ready();
    let speak = stage.speak("Walter stumbles.");
    click(&mut stage, "Nora");
    let nora = stage.told_prepare();
    stage.tell(Event::Failed { job: speak.id, error: "It went wrong.".into(), bad_input: false });
    stage.until("the failure", |app| matches!(app.state().job, JobState::Failed(_)));
    assert_eq!(stage.window.state().state().voice, VoiceState::Preparing);
    stage.tell(Event::VoiceReady { job: nora.id, voice: voice("Nora"), ms: 5.0 });
    stage.until("Nora", |app| app.state().voice == VoiceState::Ready { ms: 5.0 });
}
