//! What other threads tell the window, and what follows from it.

use std::path::PathBuf;

use anyhow::Result;
use myna_engine::protocol::{Event, Pcm, Stats};

use super::App;
use crate::clip_check::Report;
use crate::library::{self, ClipId, Reading, Sound};
use crate::recorder;
use crate::state::{JobState, ModelState, Settings, Tone, VoiceState};

/// News from another thread.
#[derive(Debug)]
pub(super) enum Inbound {
    /// From the engine.
    Engine(Event),
    /// A clip was read, or not.
    Read(ClipId, Result<Sound>),
    /// A clip was looked at.
    Examined(ClipId, std::ops::Range<f32>, Report),
    /// A clip was chosen.
    ClipChosen(PathBuf),
    /// A folder with a model was chosen.
    ModelChosen(PathBuf),
    /// A place for the take was chosen.
    PlaceChosen(PathBuf),
    /// A dialog was closed without a choice.
    Nothing,
    /// The take was written, or not.
    Saved(PathBuf, Result<()>),
    /// The microphone is done.
    Recorded(Result<Option<Pcm>>),
    /// A recording was written, or not.
    Kept(Pcm, Result<PathBuf>),
    /// The settings were written, or not.
    Remembered(Result<()>),
}

impl App {
    /// Brings back what was remembered, and begins to load the model.
    pub(super) fn restore(&mut self, settings: Settings, remark: Option<String>) {
        self.state.library = library::Library::with_samples();
        for path in settings.clips.iter().rev().filter(|path| path.exists()) {
            self.state.library.add_file(path);
        }
        if let Some(id) = settings.voice.as_ref().and_then(|voice| self.state.library.find(voice)) {
            self.state.library.select(id);
        }
        self.state.settings = settings;
        if let Some(remark) = remark {
            self.state.notify(Tone::Bad, remark);
        }
        self.read_selected();
        self.load_model();
    }

    pub(super) fn receive(&mut self, inbound: Inbound) {
        match inbound {
            Inbound::Engine(event) => {
                if let Some(event) = self.link.accept(event) {
                    self.hear(event);
                }
            }
            Inbound::Read(id, sound) => self.clip_read(id, sound),
            Inbound::Examined(id, trim, report) => {
                if let Some(clip) = self.state.library.get_mut(id).filter(|clip| clip.trim == trim) {
                    clip.report = Some(report);
                }
            }
            Inbound::ClipChosen(path) => self.open_files(&[path]),
            Inbound::ModelChosen(path) => {
                self.state.settings.model = Some(path);
                self.load_model();
            }
            Inbound::PlaceChosen(path) => self.save_to(path),
            Inbound::Nothing => {}
            Inbound::Saved(path, done) => {
                self.state.saving = false;
                match done {
                    Ok(()) => {
                        tracing::info!(path = %path.display(), "saved");
                        self.state.notify(Tone::Good, format!("Saved {}", path.display()));
                    }
                    Err(error) => self.state.notify(Tone::Bad, format!("Not saved: {error:#}")),
                }
            }
            Inbound::Recorded(clip) => {
                self.recorder = None;
                self.state.recorder = Default::default();
                match clip {
                    Ok(Some(pcm)) => self.keep_recording(pcm),
                    Ok(None) => {}
                    Err(error) => self.state.notify(Tone::Bad, format!("Nothing was recorded: {error:#}")),
                }
            }
            Inbound::Kept(_, Ok(path)) => {
                tracing::info!(path = %path.display(), "recorded");
                self.open_files(&[path]);
            }
            Inbound::Kept(pcm, Err(error)) => {
                self.state.notify(Tone::Bad, format!("The recording is here, but could not be written: {error:#}"));
                self.use_recording(pcm);
            }
            Inbound::Remembered(Ok(())) => {}
            Inbound::Remembered(Err(error)) => {
                tracing::warn!(%error, "settings");
                self.state.notify(Tone::Bad, format!("Your settings could not be written: {error:#}"));
            }
        }
    }

    /// Writes a recording where it is found again the next time.
    fn keep_recording(&mut self, pcm: Pcm) {
        let Some(folder) = self.recordings.clone() else { return self.use_recording(pcm) };
        self.post.work("recording", move || {
            let kept = recorder::keep(&folder, &pcm);
            Inbound::Kept(pcm, kept)
        });
    }

    fn use_recording(&mut self, pcm: Pcm) {
        let id = self.state.library.add_recording(pcm);
        self.select(id);
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::LoadProgress { fraction, part } => self.state.model = ModelState::Loading { fraction, part },
            Event::Loaded(info) => {
                tracing::info!(title = info.title, ms = info.load_ms, "model ready");
                self.state.model = ModelState::Ready((*info).into());
                self.prepare_selected();
            }
            Event::LoadFailed { error } => {
                self.state.model = ModelState::Failed(error);
                self.give_up("The model could not be loaded.");
            }
            Event::Unloaded => {
                self.state.model = ModelState::Absent;
                self.give_up("The model was unloaded.");
            }
            Event::Started { .. } => self.state.job = JobState::Speaking(Stats::default()),
            Event::Progress { stats, .. } => self.state.job = JobState::Speaking(stats),
            Event::Finished { stats, .. } => {
                tracing::info!(rtf = stats.rtf, ttfa_ms = stats.ttfa_ms, secs = stats.audio_secs, "spoken");
                self.state.job = JobState::Done(stats);
            }
            Event::VoiceReady { voice, ms, .. } => {
                if let Some(key) = self.preparing.take() {
                    self.voices.insert(key, voice);
                }
                tracing::info!(ms, "voice ready");
                self.state.voice = VoiceState::Ready { ms };
                self.grant_wish();
            }
            Event::Cancelled { .. } => {
                // What the window itself stopped is not heard of again; this was stopped by the engine.
                self.preparing = None;
                if self.state.job.is_busy() {
                    self.state.job = JobState::Stopped(self.state.job.stats().copied().unwrap_or_default());
                }
            }
            Event::Failed { error, .. } => self.failed(error),
        }
    }

    fn failed(&mut self, error: String) {
        if self.preparing.take().is_some() {
            self.state.voice = VoiceState::Failed(error.clone());
            if self.wish.is_some() {
                self.give_up(&error);
            }
            return;
        }
        self.state.notify(Tone::Bad, error.clone());
        self.state.job = JobState::Failed(error);
    }

    /// Ends a wish to speak that cannot be granted.
    fn give_up(&mut self, why: &str) {
        self.preparing = None;
        if self.state.voice == VoiceState::Preparing {
            self.state.voice = VoiceState::Unprepared;
        }
        if self.wish.take().is_some() || self.state.job.is_busy() {
            self.state.job = JobState::Failed(why.to_owned());
        }
    }

    fn clip_read(&mut self, id: ClipId, sound: Result<Sound>) {
        let Some(clip) = self.state.library.get_mut(id) else { return };
        match sound {
            Ok(sound) => {
                clip.trim = 0.0..sound.pcm.secs();
                clip.reading = Reading::Done(sound);
                self.examine(id);
            }
            Err(error) => {
                let text = format!("{error:#}");
                clip.reading = Reading::Failed(text.clone());
                if self.state.clip().is_some_and(|clip| clip.id == id) {
                    self.give_up(&text);
                }
                self.state.notify(Tone::Bad, text);
            }
        }
        if self.state.clip().is_some_and(|clip| clip.id == id) {
            self.prepare_selected();
        }
    }
}
