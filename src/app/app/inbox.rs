//! What other threads tell the window, and what follows from it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use myna_engine::protocol::{Event, ModelInfo, Pcm, Stats};

use super::{App, VoiceKey};
use crate::clip_check::Report;
use crate::comparison::Compared;
use crate::download::Release;
use crate::engine_link::Subject;
use crate::library::{self, ClipId, Reading, Sound};
use crate::player::Take;
use crate::recorder;
use crate::state::{JobState, ModelState, Settings, Tone, VoiceChoice, VoiceState};

/// News from another thread.
#[derive(Debug)]
pub(super) enum Inbound {
    /// From the engine.
    Engine(Event),
    /// A clip was read, or not.
    Read(ClipId, Result<Sound>),
    /// Files of these clips are not there any more.
    Gone(Vec<ClipId>),
    /// The used part of a clip, for the engine.
    Cut {
        /// What it will be the voice of.
        key: VoiceKey,
        /// The part.
        clip: Pcm,
        /// Name for people.
        name: String,
    },
    /// The used part of a clip, to be heard.
    Audible(ClipId, Result<Arc<Take>>),
    /// A clip was looked at.
    Examined(ClipId, std::ops::Range<f32>, Report),
    /// A clip was chosen.
    ClipChosen(PathBuf),
    /// A folder with a model was chosen.
    ModelChosen(PathBuf),
    /// A place for the take was chosen.
    PlaceChosen(PathBuf),
    /// A folder with a model was chosen for a side of the comparison.
    SideModelChosen(usize, PathBuf),
    /// How far the comparison is, and what is being done.
    Comparing(f32, String),
    /// Two settings were compared, or not.
    Compared(Result<Arc<Compared>>),
    /// A folder for the comparison was chosen.
    ComparisonPlaceChosen(PathBuf),
    /// Released models that are here.
    Releases(BTreeSet<String>),
    /// How many bytes of a released model are there.
    Fetching(u64),
    /// A released model was fetched, or not.
    Fetched(&'static Release, Result<PathBuf>),
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
        let files: Vec<(ClipId, PathBuf)> =
            settings.clips.iter().rev().map(|path| (self.state.library.add_file(path), path.clone())).collect();
        if let Some(id) = settings.voice.as_ref().and_then(|voice| self.state.library.find(voice)) {
            self.state.library.select(id);
        }
        self.state.settings = settings;
        if let Some(remark) = remark {
            self.state.notify(Tone::Bad, remark);
        }
        // A disk that is far away may take its time to say what is still there; a clip of one's own is read after that.
        if !files.is_empty() {
            let chosen = self.state.clip().filter(|clip| clip.is_own()).map(|clip| clip.id);
            if let Some(clip) = chosen.and_then(|id| self.state.library.get_mut(id)) {
                clip.reading = Reading::Busy;
            }
            self.post.work("clips", move || {
                Inbound::Gone(files.into_iter().filter(|(_, path)| !path.exists()).map(|(id, _)| id).collect())
            });
        }
        self.look_for_releases();
        self.load_model();
    }

    pub(super) fn receive(&mut self, inbound: Inbound) {
        match inbound {
            Inbound::Engine(event) => {
                if let Some((subject, event)) = self.link.accept(event) {
                    self.hear(subject, event);
                }
            }
            Inbound::Read(id, sound) => self.clip_read(id, sound),
            Inbound::Gone(ids) => self.forget_gone(&ids),
            Inbound::Cut { key, clip, name } => self.cut(&key, clip, name),
            Inbound::Audible(id, take) => self.audible(id, take),
            Inbound::Examined(id, trim, report) => {
                if let Some(clip) = self.state.library.get_mut(id).filter(|clip| clip.trim == trim) {
                    clip.report = Some(report);
                }
            }
            Inbound::ClipChosen(path) => self.open_files(&[path]),
            Inbound::ModelChosen(path) => self.use_model(path),
            Inbound::Releases(here) => self.state.releases.here = here,
            Inbound::Fetching(bytes) => self.fetching(bytes),
            Inbound::Fetched(release, done) => self.fetched(release, done),
            Inbound::PlaceChosen(path) => self.save_to(path),
            Inbound::SideModelChosen(side, path) => self.side_model_chosen(side, path),
            Inbound::Comparing(fraction, what) => self.comparing(fraction, what),
            Inbound::Compared(made) => self.compared(made),
            Inbound::ComparisonPlaceChosen(folder) => self.save_comparison(folder),
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

    fn hear(&mut self, subject: Subject, event: Event) {
        match event {
            Event::LoadProgress { fraction, part } => self.state.model = ModelState::Loading { fraction, part },
            Event::Loaded(info) => {
                tracing::info!(title = info.title, ms = info.load_ms, "model ready");
                self.meet(&info);
                self.state.model = ModelState::Ready((*info).into());
                self.prepare_selected();
            }
            Event::LoadFailed { error } => {
                self.state.model = ModelState::Failed(error);
                self.lose_model("The model could not be loaded.");
            }
            Event::Unloaded if self.begin_comparison() => {}
            Event::Unloaded => {
                self.state.model = ModelState::Absent;
                self.lose_model("The model was unloaded.");
            }
            // A voice that is being learned has begun as well, but nothing is spoken then.
            Event::Started { .. } if subject == Subject::Speech => {
                self.state.job = JobState::Speaking(Stats::default());
            }
            Event::Started { .. } => {}
            Event::Progress { stats, .. } => {
                tracing::debug!(ttfa_ms = stats.ttfa_ms, stages = ?stats.stages, "speaking");
                self.state.job = JobState::Speaking(stats);
            }
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
            // What the window itself stopped is not heard of again; this was stopped by the engine.
            Event::Cancelled { .. } if subject == Subject::Voice => {
                self.preparing = None;
                self.give_up("The voice was not learned.");
            }
            Event::Cancelled { .. } => {
                self.state.job = JobState::Stopped(self.state.job.stats().copied().unwrap_or_default());
            }
            Event::Failed { error, .. } if subject == Subject::Voice => {
                self.state.voice = VoiceState::Failed(error.clone());
                self.give_up(&error);
            }
            Event::Failed { error, .. } => {
                self.state.notify(Tone::Bad, error.clone());
                self.state.job = JobState::Failed(error);
            }
        }
    }

    /// Lists the voice that a model brings along, and takes it if it was the last that was chosen.
    fn meet(&mut self, info: &ModelInfo) {
        let voice = info.builtin_voice.clone();
        self.state.library.set_model_voice(voice.map(|voice| (voice, info.title.as_str())));
        if self.state.settings.voice == Some(VoiceChoice::Model)
            && let Some(id) = self.state.library.find(&VoiceChoice::Model)
        {
            self.state.library.select(id);
        }
        self.read_selected();
    }

    /// Ends all that needed the model.
    fn lose_model(&mut self, why: &str) {
        self.give_up(why);
        if self.state.job.is_busy() {
            self.state.job = JobState::Failed(why.to_owned());
        }
    }

    /// Ends a wish to speak that cannot be granted.
    fn give_up(&mut self, why: &str) {
        self.preparing = None;
        if self.state.voice == VoiceState::Preparing {
            self.state.voice = VoiceState::Unprepared;
        }
        if self.wish.take().is_some() || self.state.job == JobState::Waiting {
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
