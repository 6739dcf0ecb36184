//! The voices to choose from: those that came with the program, clips from the disk, and recordings.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use myna_engine::Voice;
use myna_engine::protocol::Pcm;
use serde::Deserialize;

use crate::audio_file;
use crate::clip_check::{Report, check};
use crate::player::{Peak, peaks_of};
use crate::state::VoiceChoice;

/// Peaks per second of a clip's picture.
pub const PEAKS_HZ: u32 = 100;

const LIST: &str = include_str!("../../assets/voices/voices.json");
const FILES: [(&str, &[u8]); 6] = [
    ("walter.flac", include_bytes!("../../assets/voices/walter.flac")),
    ("nora.flac", include_bytes!("../../assets/voices/nora.flac")),
    ("pip.flac", include_bytes!("../../assets/voices/pip.flac")),
    ("edgar.flac", include_bytes!("../../assets/voices/edgar.flac")),
    ("grace.flac", include_bytes!("../../assets/voices/grace.flac")),
    ("marcus.flac", include_bytes!("../../assets/voices/marcus.flac")),
];

/// Names a clip while the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClipId(usize);

/// Where a clip comes from.
#[derive(Debug, Clone)]
pub enum Origin {
    /// It came with the program.
    Sample(&'static str),
    /// A file.
    File(PathBuf),
    /// The microphone.
    Recording(Arc<Pcm>),
    /// The loaded model; the voice is prepared already and has no clip.
    Model(Arc<Voice>),
}

/// A clip that was read.
#[derive(Debug, Clone)]
pub struct Sound {
    /// Its samples.
    pub pcm: Arc<Pcm>,
    /// Its picture.
    pub peaks: Arc<[Peak]>,
}

/// How far a clip has been read.
#[derive(Debug, Clone, Default)]
pub enum Reading {
    /// Not at all.
    #[default]
    Unread,
    /// It is being read.
    Busy,
    /// It is there.
    Done(Sound),
    /// It cannot be read.
    Failed(String),
}

/// A voice to choose.
#[derive(Debug, Clone)]
pub struct Clip {
    /// Its name while the program runs.
    pub id: ClipId,
    /// Its name for people.
    pub name: String,
    /// A line about it.
    pub about: String,
    /// Where it comes from.
    pub origin: Origin,
    /// Its sound.
    pub reading: Reading,
    /// The part that is used, in seconds.
    pub trim: Range<f32>,
    /// Remarks about that part.
    pub report: Option<Report>,
}

impl Clip {
    /// Its sound, once read.
    pub fn sound(&self) -> Option<&Sound> {
        if let Reading::Done(sound) = &self.reading { Some(sound) } else { None }
    }

    /// Whether it can be removed.
    pub fn is_own(&self) -> bool {
        matches!(self.origin, Origin::File(_) | Origin::Recording(_))
    }

    /// How settings remember it; recordings are not remembered.
    pub fn choice(&self) -> Option<VoiceChoice> {
        match &self.origin {
            Origin::Sample(file) => Some(VoiceChoice::Sample((*file).to_owned())),
            Origin::File(path) => Some(VoiceChoice::File(path.clone())),
            Origin::Model(_) => Some(VoiceChoice::Model),
            Origin::Recording(_) => None,
        }
    }
}

/// Samples of a stretch of time.
pub fn part<'a>(pcm: &'a Pcm, secs: &Range<f32>) -> &'a [f32] {
    let at = |s: f32| ((s.max(0.0) * pcm.sample_rate_hz as f32) as usize).min(pcm.samples.len());
    let (from, to) = (at(secs.start), at(secs.end));
    &pcm.samples[from..to.max(from)]
}

/// All voices.
#[derive(Debug, Default)]
pub struct Library {
    clips: Vec<Clip>,
    selected: Option<ClipId>,
    next: usize,
}

#[derive(Deserialize)]
struct Listed {
    file: String,
    name: String,
    about: String,
}

impl Library {
    /// The voices that came with the program.
    pub fn with_samples() -> Self {
        let mut library = Self::default();
        // The list is part of the program; a test reads it.
        let listed: Vec<Listed> = serde_json::from_str(LIST).unwrap_or_default();
        for Listed { file, name, about } in listed {
            if let Some((file, _)) = FILES.iter().find(|(known, _)| *known == file) {
                library.add(name, about, Origin::Sample(file));
            }
        }
        library.selected = library.clips.first().map(|clip| clip.id);
        library
    }

    /// All of them: one's own first, the latest on top, then the one of the model, then the samples.
    pub fn clips(&self) -> &[Clip] {
        &self.clips
    }

    /// One of them.
    pub fn get(&self, id: ClipId) -> Option<&Clip> {
        self.clips.iter().find(|clip| clip.id == id)
    }

    /// One of them, to change.
    pub fn get_mut(&mut self, id: ClipId) -> Option<&mut Clip> {
        self.clips.iter_mut().find(|clip| clip.id == id)
    }

    /// The chosen one.
    pub fn selected(&self) -> Option<&Clip> {
        self.selected.and_then(|id| self.get(id))
    }

    /// Chooses.
    pub fn select(&mut self, id: ClipId) {
        if self.get(id).is_some() {
            self.selected = Some(id);
        }
    }

    /// Adds a file, or finds it where it is known already.
    pub fn add_file(&mut self, path: &Path) -> ClipId {
        let known = self.clips.iter().find(|clip| matches!(&clip.origin, Origin::File(p) if p == path));
        if let Some(clip) = known {
            return clip.id;
        }
        let name = path.file_stem().map_or_else(|| "Clip".to_owned(), |stem| stem.to_string_lossy().into_owned());
        let folder = path.parent().and_then(Path::file_name).map(|name| name.to_string_lossy()).unwrap_or_default();
        self.add(name, format!("From {folder}. {}", path.display()), Origin::File(path.to_owned()))
    }

    /// Adds a recording.
    pub fn add_recording(&mut self, pcm: Pcm) -> ClipId {
        let n = 1 + self.clips.iter().filter(|clip| matches!(clip.origin, Origin::Recording(_))).count();
        let about = format!("Recorded here, {:.1} s", pcm.secs());
        self.add(format!("Recording {n}"), about, Origin::Recording(Arc::new(pcm)))
    }

    /// Lists the voice that came with a model, or none, in place of the one of the model before.
    pub fn set_model_voice(&mut self, voice: Option<(Arc<Voice>, &str)>) {
        self.clips.retain(|clip| !matches!(clip.origin, Origin::Model(_)));
        if let Some((voice, model)) = voice {
            self.add("Built-in".to_owned(), format!("Came with {model}"), Origin::Model(voice));
        }
        if self.selected().is_none() {
            self.selected = self.first_sample();
        }
    }

    /// Forgets one of one's own; the first voice is chosen if it was chosen.
    pub fn remove(&mut self, id: ClipId) {
        self.clips.retain(|clip| clip.id != id || !clip.is_own());
        if self.selected().is_none() {
            self.selected = self.first_sample();
        }
    }

    /// The clip of that name, in any case.
    pub fn by_name(&self, name: &str) -> Option<&Clip> {
        self.clips.iter().find(|clip| clip.name.eq_ignore_ascii_case(name))
    }

    /// The clip that settings remember.
    pub fn find(&self, choice: &VoiceChoice) -> Option<ClipId> {
        self.clips.iter().find(|clip| clip.choice().as_ref() == Some(choice)).map(|clip| clip.id)
    }

    /// Files among the clips, the latest first.
    pub fn files(&self) -> Vec<PathBuf> {
        let path = |clip: &Clip| if let Origin::File(path) = &clip.origin { Some(path.clone()) } else { None };
        self.clips.iter().filter_map(path).collect()
    }

    fn add(&mut self, name: String, about: String, origin: Origin) -> ClipId {
        let id = ClipId(self.next);
        self.next += 1;
        let at = match &origin {
            Origin::File(_) | Origin::Recording(_) => 0,
            Origin::Model(_) => self.clips.iter().take_while(|clip| clip.is_own()).count(),
            Origin::Sample(_) => self.clips.len(),
        };
        let clip = Clip { id, name, about, origin, reading: Reading::Unread, trim: 0.0..0.0, report: None };
        self.clips.insert(at, clip);
        id
    }

    fn first_sample(&self) -> Option<ClipId> {
        self.clips.iter().find(|clip| matches!(clip.origin, Origin::Sample(_))).map(|clip| clip.id)
    }
}

/// Reads a clip; takes a while.
///
/// # Errors
/// If it is no audio that can be read.
pub fn read(origin: &Origin) -> Result<Sound> {
    let pcm = match origin {
        Origin::Sample(file) => {
            let (_, bytes) =
                FILES.iter().find(|(known, _)| known == file).context("this voice is not in the program")?;
            Arc::new(audio_file::decode_bytes(file, bytes)?)
        }
        Origin::File(path) => Arc::new(audio_file::decode(path)?),
        Origin::Recording(pcm) => Arc::clone(pcm),
        Origin::Model(_) => bail!("this voice came with the model and has no clip"),
    };
    let peaks = peaks_of(&pcm.samples, (pcm.sample_rate_hz / PEAKS_HZ) as usize).into();
    Ok(Sound { pcm, peaks })
}

/// The used part of a clip by itself; takes a while where it is long.
pub fn cut(sound: &Sound, trim: &Range<f32>) -> Pcm {
    Pcm { samples: part(&sound.pcm, trim).to_vec(), sample_rate_hz: sound.pcm.sample_rate_hz }
}

/// Looks at the used part of a clip; takes a while.
pub fn examine(sound: &Sound, trim: &Range<f32>) -> Report {
    check(part(&sound.pcm, trim), sound.pcm.sample_rate_hz)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_sample_voice_can_be_read_and_is_a_good_one() {
        let library = Library::with_samples();
        assert_eq!(library.clips().len(), FILES.len());
        for clip in library.clips() {
            let sound = read(&clip.origin).unwrap();
            assert!(sound.pcm.secs() > 6.0, "{}", clip.name);
            let report = examine(&sound, &(0.0..sound.pcm.secs()));
            assert!(report.level() < crate::clip_check::Level::Bad, "{}: {report:?}", clip.name);
        }
    }

    #[test]
    fn a_file_is_listed_once_and_can_be_forgotten() {
        let mut library = Library::with_samples();
        let first = library.selected().unwrap().id;
        let id = library.add_file(Path::new("/tmp/aunt.wav"));
        assert_eq!(library.add_file(Path::new("/tmp/aunt.wav")), id);
        library.select(id);
        assert_eq!(library.selected().unwrap().name, "aunt");
        library.remove(id);
        assert_eq!(library.selected().unwrap().id, first);
        library.remove(first);
        assert_eq!(library.selected().unwrap().id, first, "a voice of the program stays");
    }
}
