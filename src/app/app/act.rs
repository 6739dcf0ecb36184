//! What each action does.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use myna_engine::dsp::resample::resample;
use myna_engine::protocol::{LoadRequest, Pcm, SAMPLE_RATE_HZ, SpeakSettings};

use super::inbox::Inbound;
use super::{App, TakeSource, VoiceKey};
use crate::action::Action;
use crate::export::{self, Provenance};
use crate::library::{self, ClipId, Origin, Reading};
use crate::player::{PlayState, Take};
use crate::recorder::Recorder;
use crate::state::{ExportChoice, JobState, ModelState, OnDeck, Tone, VoiceState, estimated_secs};

/// Clips of one's own that settings remember.
const REMEMBERED_CLIPS: usize = 24;

impl App {
    /// Carries out a wish; `pressed` is when it was made.
    pub fn act(&mut self, action: Action, pressed: Instant) {
        match action {
            Action::Speak => self.speak(pressed),
            Action::Stop => self.stop(),
            Action::TogglePlay => self.toggle_play(),
            Action::Replay => {
                self.put_on_deck();
                self.player.seek(0.0);
                self.player.play();
            }
            Action::Seek(secs) => {
                self.put_on_deck();
                self.player.seek(secs);
            }
            Action::Save => self.ask_where_to_save(),
            Action::Export(export) => self.state.settings.export = export,
            Action::Volume(volume) => {
                self.state.settings.volume = volume;
                self.player.set_volume(volume);
            }
            Action::OutputDevice(id) => {
                self.state.settings.output.clone_from(&id);
                self.player.set_device(id);
            }
            Action::ListDevices => self.player.list_devices(),
            Action::SelectVoice(id) => self.select(id),
            Action::OpenClip => self.dialogs.open_clip(self.reply(Inbound::ClipChosen)),
            Action::DropFiles(paths) => self.open_files(&paths),
            Action::RemoveVoice(id) => self.remove(id),
            Action::Trim(id, trim) => self.trim(id, trim),
            Action::TrimPreview(id, trim) => {
                if let Some(clip) = self.state.library.get_mut(id) {
                    clip.trim = trim;
                }
            }
            Action::Preview(id) => self.preview(id),
            Action::Record => self.record(),
            Action::FinishRecording => self.recorder.iter().for_each(Recorder::finish),
            Action::CancelRecording => self.recorder.iter().for_each(Recorder::cancel),
            Action::InsertTag(tag) => self.state.insert = Some(tag),
            Action::TryText(text) => {
                text.clone_into(&mut self.state.settings.text);
                self.state.focus_editor = true;
            }
            Action::Settings(speak) => self.set_speak(|own| *own = speak),
            Action::Defaults => {
                let defaults = self.state.defaults();
                self.set_speak(|own| {
                    *own = SpeakSettings { seed: own.seed, language: own.language.clone(), ..defaults };
                });
            }
            Action::NewSeed => self.set_speak(|own| own.seed = fresh_seed()),
            Action::LockSeed(locked) => self.state.settings.seed_locked = locked,
            Action::Precision(precision) => {
                self.state.settings.precision = precision;
                self.load_model();
            }
            Action::Device(device) => {
                self.state.settings.device = device;
                self.load_model();
            }
            Action::ChooseModel => self.dialogs.model_folder(self.reply(Inbound::ModelChosen)),
            Action::EmbeddedModel => {
                self.state.settings.model = None;
                self.load_model();
            }
            Action::UseModel(path) => self.use_model(path),
            Action::FetchModel(name) => self.fetch_model(name),
            Action::StopFetching => self.stop_fetching(),
            Action::ReloadModel => self.load_model(),
            Action::ShowComparison(shown) => self.show_comparison(shown),
            Action::ComparisonSide(side, choice) => {
                if let Some(own) = self.state.settings.compare.get_mut(side) {
                    *own = choice;
                }
            }
            Action::ComparisonModel(side) => self.choose_comparison_model(side),
            Action::Compare => self.compare(),
            Action::Hear(heard) => self.hear_side(heard),
            Action::ComparisonPicture(picture) => self.state.compare.picture = picture,
            Action::BeginTest(trials) => self.begin_test(trials),
            Action::AnswerTest(x_is_b) => self.answer_test(x_is_b),
            Action::EndTest => self.end_test(),
            Action::SaveComparison => self.ask_where_to_save_comparison(),
            Action::Theme(theme) => self.state.settings.theme = theme,
            Action::ShowSettings(shown) => self.state.settings.settings_open = Some(shown),
            Action::ShowSampling(shown) => self.state.settings.sampling_open = shown,
            Action::Dismiss => drop(self.state.notices.pop_front()),
        }
    }

    pub(super) fn reply(&self, choice: impl FnOnce(PathBuf) -> Inbound + Send + 'static) -> crate::dialogs::Reply {
        let post = self.post.clone();
        Box::new(move |path| post.send(path.map_or(Inbound::Nothing, choice)))
    }

    pub(super) fn set_speak(&mut self, change: impl FnOnce(&mut SpeakSettings)) {
        let Some(title) = self.state.model.described().map(|info| info.title.clone()) else { return };
        let mut speak = self.state.speak();
        change(&mut speak);
        self.state.settings.speak.insert(title, speak);
    }

    // The model.

    pub(super) fn load_model(&mut self) {
        if self.comparing.is_some() {
            // It is loaded when the comparison is over.
            return;
        }
        let (settings, offers) = (&mut self.state.settings, &self.state.offers);
        offers.fit(&mut settings.precision, &mut settings.device);
        let request = LoadRequest {
            source: settings.source(),
            variant: None,
            precision: settings.precision,
            plan: None,
            device: settings.device,
            threads: None,
            cache: crate::cache_folder(),
        };
        self.preparing = None;
        self.voices.clear();
        if self.state.job.is_busy() {
            self.state.job = JobState::Stopped(self.state.job.stats().copied().unwrap_or_default());
        }
        self.wish = None;
        self.state.voice = VoiceState::Unprepared;
        self.state.library.set_model_voice(None);
        self.read_selected();
        self.state.model = match self.link.load(request) {
            Ok(()) => ModelState::Loading { fraction: 0.0, part: "" },
            Err(gone) => ModelState::Failed(gone.to_string()),
        };
    }

    pub(super) fn use_model(&mut self, folder: PathBuf) {
        self.state.settings.model = Some(folder);
        self.load_model();
    }

    // Voices.

    pub(super) fn select(&mut self, id: ClipId) {
        self.state.library.select(id);
        self.state.settings.voice = self.state.clip().and_then(library::Clip::choice);
        self.read_selected();
        self.prepare_selected();
    }

    pub(super) fn open_files(&mut self, paths: &[PathBuf]) {
        for path in paths {
            let id = self.state.library.add_file(path);
            // A file that failed may have been mended meanwhile.
            if let Some(clip) = self.state.library.get_mut(id).filter(|c| matches!(c.reading, Reading::Failed(_))) {
                clip.reading = Reading::Unread;
            }
            self.select(id);
        }
        self.remember_clips();
    }

    fn remember_clips(&mut self) {
        let mut files = self.state.library.files();
        files.truncate(REMEMBERED_CLIPS);
        self.state.settings.clips = files;
    }

    fn remove(&mut self, id: ClipId) {
        let chosen = self.state.clip().is_some_and(|clip| clip.id == id);
        self.state.library.remove(id);
        self.voices.retain(|key, _| key.clip != id);
        self.remember_clips();
        if chosen && let Some(next) = self.state.clip().map(|clip| clip.id) {
            self.select(next);
        }
    }

    pub(super) fn read_selected(&mut self) {
        let Some(id) = self.state.clip().map(|clip| clip.id) else { return };
        let Some(clip) = self.state.library.get_mut(id) else { return };
        if !matches!(clip.reading, Reading::Unread) || matches!(clip.origin, Origin::Model(_)) {
            return;
        }
        clip.reading = Reading::Busy;
        let origin: Origin = clip.origin.clone();
        self.post.work("decoder", move || Inbound::Read(id, library::read(&origin)));
    }

    /// Takes clips off the list whose files are gone; they are remembered all the same, for a disk may come back.
    pub(super) fn forget_gone(&mut self, gone: &[ClipId]) {
        gone.iter().for_each(|id| self.state.library.remove(*id));
        let chosen = self.state.clip().map(|clip| clip.id);
        if let Some(clip) = chosen.and_then(|id| self.state.library.get_mut(id)).filter(|clip| clip.is_own()) {
            clip.reading = Reading::Unread;
        }
        self.read_selected();
        self.prepare_selected();
    }

    pub(super) fn examine(&self, id: ClipId) {
        let Some(clip) = self.state.library.get(id) else { return };
        let (Some(sound), trim) = (clip.sound().cloned(), clip.trim.clone()) else { return };
        self.post.work("examiner", move || {
            let report = library::examine(&sound, &trim);
            Inbound::Examined(id, trim, report)
        });
    }

    fn trim(&mut self, id: ClipId, trim: std::ops::Range<f32>) {
        if let Some(clip) = self.state.library.get_mut(id) {
            clip.trim = trim;
        }
        self.examine(id);
        self.prepare_selected();
    }

    fn voice_key(&self) -> Option<VoiceKey> {
        let (clip, info) = (self.state.clip()?, self.state.model.info()?);
        if !matches!(clip.origin, Origin::Model(_)) {
            clip.sound()?;
        }
        let ms = |secs: f32| (secs * 1e3).round() as u32;
        let model = format!("{} {} {:?}", info.model_hash, info.title, info.precision);
        Some(VoiceKey { clip: clip.id, from_ms: ms(clip.trim.start), to_ms: ms(clip.trim.end), model })
    }

    /// Has the engine learn the chosen voice, as soon as there is a model and a clip.
    pub(super) fn prepare_selected(&mut self) {
        let Some(key) = self.voice_key() else {
            self.link.cancel_prepare();
            self.preparing = None;
            self.state.voice = VoiceState::Unprepared;
            return;
        };
        if self.preparing.as_ref() == Some(&key) {
            return;
        }
        self.link.cancel_prepare();
        self.preparing = None;
        if let Some(Origin::Model(voice)) = self.state.clip().map(|clip| &clip.origin) {
            self.voices.insert(key.clone(), voice.clone());
        }
        if self.voices.contains_key(&key) {
            self.state.voice = VoiceState::Ready { ms: 0.0 };
            self.grant_wish();
            return;
        }
        let Some((sound, trim, name)) =
            self.state.clip().and_then(|clip| Some((clip.sound()?.clone(), clip.trim.clone(), clip.name.clone())))
        else {
            return;
        };
        self.preparing = Some(key.clone());
        self.state.voice = VoiceState::Preparing;
        // A long clip is a lot to copy.
        self.post.work("cutter", move || Inbound::Cut { key, clip: library::cut(&sound, &trim), name });
    }

    /// Has the engine learn the part of a clip that was cut out, if it is still wanted.
    pub(super) fn cut(&mut self, key: &VoiceKey, clip: Pcm, name: String) {
        if self.preparing.as_ref() != Some(key) {
            return;
        }
        if let Err(gone) = self.link.prepare(clip, name) {
            self.preparing = None;
            self.state.model = ModelState::Failed(gone.to_string());
        }
    }

    fn preview(&mut self, id: ClipId) {
        self.listening = None;
        let playing = matches!(self.state.player.state, PlayState::Playing | PlayState::Buffering);
        if self.state.on_deck == OnDeck::Clip(id) && playing {
            self.player.pause();
            self.put_on_deck();
            return;
        }
        let Some(clip) = self.state.library.get(id) else { return };
        let (Some(sound), trim) = (clip.sound().cloned(), clip.trim.clone()) else { return };
        if self.state.job.is_busy() {
            self.stop();
        }
        self.listening = Some(id);
        self.post.work("resampler", move || {
            let part = library::part(&sound.pcm, &trim);
            let take = resample(part, sound.pcm.sample_rate_hz, SAMPLE_RATE_HZ);
            Inbound::Audible(id, take.map(|samples| Take::from_samples(&samples)).map_err(Into::into))
        });
    }

    /// Plays a clip, if somebody still wants to hear it.
    pub(super) fn audible(&mut self, id: ClipId, take: Result<Arc<Take>>) {
        if self.listening != Some(id) {
            return;
        }
        self.listening = None;
        match take {
            Ok(take) => {
                self.state.on_deck = OnDeck::Clip(id);
                self.player.load(take, true);
            }
            Err(error) => self.state.notify(Tone::Bad, format!("{error:#}")),
        }
    }

    fn record(&mut self) {
        if self.recorder.is_some() {
            return;
        }
        self.listening = None;
        self.player.pause();
        let post = self.post.clone();
        let wake = self.post.wake.clone();
        let microphone = self.microphone.clone();
        match Recorder::start(microphone, wake, move |clip| post.send(Inbound::Recorded(clip))) {
            Ok(recorder) => {
                self.state.recorder = recorder.status();
                self.recorder = Some(recorder);
            }
            Err(error) => self.state.notify(Tone::Bad, format!("Recording is not possible: {error}")),
        }
    }

    // Speaking and playing.

    fn speak(&mut self, pressed: Instant) {
        if self.state.settings.text.trim().is_empty() {
            return;
        }
        if matches!(self.state.model, ModelState::Failed(_) | ModelState::Absent | ModelState::Aside(_)) {
            return;
        }
        if matches!(self.state.voice, VoiceState::Failed(_)) {
            return;
        }
        self.link.cancel_speak();
        self.listening = None;
        if !self.state.settings.seed_locked {
            self.set_speak(|own| own.seed = fresh_seed());
        }
        self.player.clear();
        self.state.take = None;
        self.state.take_seed = None;
        self.state.on_deck = OnDeck::Speech;
        self.state.notices.retain(|notice| notice.tone == Tone::Good);
        self.state.job = JobState::Waiting;
        self.wish = Some(pressed);
        self.grant_wish();
    }

    /// Speaks, if the voice is ready and somebody wishes so; if nobody does yet, the engine gets ready for it.
    pub(super) fn grant_wish(&mut self) {
        let Some(voice) = self.voice_key().and_then(|key| self.voices.get(&key)).cloned() else { return };
        let Some(pressed) = self.wish.take() else {
            return self.link.warm(voice, self.state.speak().steps);
        };
        let mut settings = self.state.speak();
        if !self.state.settings.seed_locked && self.state.take_seed.is_none() {
            settings.seed = fresh_seed();
            self.set_speak(|own| own.seed = settings.seed);
        }
        let text = self.state.settings.text.clone();
        let expected = estimated_secs(&text);
        let seed = settings.seed;
        self.source = self.state.model.info().map(|model| TakeSource {
            model: model.clone(),
            voice: voice.clone(),
            settings: settings.clone(),
        });
        match self.link.speak(text.clone(), voice, settings) {
            Ok(audio) => {
                let take = Take::new();
                self.player.begin(take.clone(), audio, Some(pressed), expected);
                self.state.take = Some(take);
                self.state.take_text = text;
                self.state.take_expected_secs = expected;
                self.state.take_seed = Some(seed);
            }
            Err(gone) => {
                self.state.model = ModelState::Failed(gone.to_string());
                self.state.job = JobState::Failed(gone.to_string());
            }
        }
    }

    pub(super) fn stop(&mut self) {
        self.wish = None;
        self.listening = None;
        self.cancel_comparison();
        self.link.cancel_speak();
        if self.state.job.is_busy() {
            self.state.job = JobState::Stopped(self.state.job.stats().copied().unwrap_or_default());
        }
        if let Some(recorder) = &self.recorder {
            recorder.cancel();
        }
        self.player.stop();
        self.put_on_deck();
    }

    fn toggle_play(&mut self) {
        let playing = matches!(self.state.player.state, PlayState::Playing | PlayState::Buffering);
        if playing && !matches!(self.state.on_deck, OnDeck::Clip(_)) {
            self.player.pause();
            return;
        }
        self.listening = None;
        self.put_on_deck();
        self.player.play();
    }

    /// Takes up what the deck shows, the speech or the comparison, after something else was listened to.
    pub(super) fn put_on_deck(&mut self) {
        let wanted = if self.state.shows_comparison() { OnDeck::Comparison } else { OnDeck::Speech };
        if self.state.on_deck == wanted {
            return;
        }
        self.state.on_deck = wanted;
        match (wanted, self.state.compare.done(), &self.state.take) {
            (OnDeck::Comparison, Some(compared), _) => self.player.load_pair(compared.takes.clone(), false),
            (_, _, Some(take)) => {
                self.player.load(take.clone(), false);
                self.player.seek(self.state.take_player.position_secs);
            }
            (_, _, None) => self.player.clear(),
        }
    }

    // Saving.

    fn ask_where_to_save(&mut self) {
        let ready = self.state.take.as_ref().is_some_and(|take| take.is_complete() && !take.is_empty());
        if !ready || self.state.saving {
            return;
        }
        let extension = self.state.settings.export.kind.extension();
        let name = format!("{}.{extension}", file_stem(&self.state.take_text));
        self.dialogs.save(self.state.settings.save_folder.clone(), name, self.reply(Inbound::PlaceChosen));
    }

    pub(super) fn save_to(&mut self, mut path: PathBuf) {
        let (Some(take), Some(source)) = (self.state.take.clone(), self.source.clone()) else { return };
        let choice = self.state.settings.export;
        if path.extension().is_none() {
            path.set_extension(choice.kind.extension());
        }
        self.state.settings.save_folder = path.parent().map(Path::to_owned);
        self.state.saving = true;
        self.post.work("saver", move || {
            // Hashes the voice: not for the window's thread.
            let about = Provenance::of(&source.model, &source.voice, &source.settings);
            let done = write(&path, &take.to_pcm(), choice, &about);
            Inbound::Saved(path, done)
        });
    }
}

fn write(path: &Path, pcm: &Pcm, choice: ExportChoice, provenance: &Provenance) -> Result<()> {
    let mut samples = resample(&pcm.samples, pcm.sample_rate_hz, choice.rate_hz)?;
    if choice.normalize {
        export::even_out(&mut samples, choice.rate_hz);
    }
    Ok(export::save(path, &samples, choice.rate_hz, choice.kind, provenance)?)
}

/// The first words of a text, as a file's name.
fn file_stem(text: &str) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).take(5);
    let stem = words.collect::<Vec<_>>().join(" ").chars().take(40).collect::<String>();
    if stem.is_empty() { "Speech".to_owned() } else { stem.trim_end().to_owned() }
}

/// A seed from the clock, short enough to be read out.
pub(super) fn fresh_seed() -> u64 {
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    nanos.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40
}
