//! What the window shows of a comparison: what was chosen, how far it is, what came of it, and what is listened to.

use std::path::PathBuf;
use std::sync::Arc;

use myna_engine::dsp::Features;
use myna_engine::protocol::{DeviceKind, LoadRequest, ModelSource, Precision};
use serde::{Deserialize, Serialize};

use super::{Abx, Comparison, DB_PER_NEPER, SideWish};
use crate::player::Take;

/// Columns of a spectrogram at most: no screen shows more of them.
const MOST_COLUMNS: usize = 1600;

/// Which model a side has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SideModel {
    /// The one that the window speaks with.
    #[default]
    Same,
    /// The small one inside the program.
    Embedded,
    /// A folder.
    Folder(PathBuf),
}

/// What one side is to be, as settings remember it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SideChoice {
    /// The model.
    pub model: SideModel,
    /// How its weights are stored.
    pub precision: Precision,
    /// Where it runs.
    pub device: DeviceKind,
    /// Steps of the flow; `None` as in the settings.
    pub steps: Option<usize>,
}

impl SideChoice {
    /// The two sides that most people ask about: is eight bits good enough?
    pub fn usual() -> [Self; 2] {
        [Precision::F16, Precision::Int8].map(|precision| Self { precision, ..Self::default() })
    }

    /// What this choice is, in words; `other` is the other side's: what both share is not said.
    pub fn name(&self, other: &Self) -> String {
        let mut words = Vec::new();
        if self.model != other.model {
            words.push(match &self.model {
                SideModel::Same => "model in use".to_owned(),
                SideModel::Embedded => "embedded model".to_owned(),
                SideModel::Folder(path) => folder_name(path),
            });
        }
        if self.precision != other.precision || (self.steps == other.steps && words.is_empty()) {
            words.push(self.precision.name().to_owned());
        }
        if self.device != other.device {
            words.push(match self.device {
                DeviceKind::Cpu => "processor".to_owned(),
                DeviceKind::Cuda | DeviceKind::Metal => "GPU".to_owned(),
            });
        }
        if self.steps != other.steps {
            words.push(self.steps.map_or("usual steps".to_owned(), |n| format!("{n} steps")));
        }
        words.join(", ")
    }

    /// For [`super::compare`]; `own` is the model that the window speaks with.
    pub fn wish(&self, other: &Self, own: ModelSource) -> SideWish {
        let source = match &self.model {
            SideModel::Same => own,
            SideModel::Embedded => ModelSource::Embedded,
            SideModel::Folder(path) => ModelSource::Folder(path.clone()),
        };
        let (precision, device) = (self.precision, self.device);
        let cache = crate::cache_folder();
        let load = LoadRequest { source, variant: None, precision, plan: None, device, threads: None, cache };
        SideWish { name: self.name(other), load, steps: self.steps }
    }
}

/// The last part of a folder's path.
pub fn folder_name(path: &std::path::Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// A picture in time (columns) and frequency (rows, the lowest first), in dB.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spectrogram {
    /// Number of columns.
    pub columns: usize,
    /// Number of rows.
    pub bands: usize,
    /// Column by column.
    pub db: Vec<f32>,
}

impl Spectrogram {
    /// Of log mels, frames averaged where there are more than a screen shows.
    pub fn of(mel: &Features) -> Self {
        let bands = mel.bands.max(1);
        let frames: Vec<&[f32]> = mel.data.chunks_exact(bands).collect();
        let step = frames.len().div_ceil(MOST_COLUMNS).max(1);
        let mut db = Vec::with_capacity(frames.len() / step * bands);
        for group in frames.chunks(step) {
            let scale = DB_PER_NEPER as f32 / group.len() as f32;
            db.extend((0..bands).map(|band| group.iter().map(|frame| frame[band]).sum::<f32>() * scale));
        }
        Self { columns: frames.len().div_ceil(step), bands, db }
    }

    /// How much louder `b` is than `a`.
    pub fn difference(a: &Features, b: &Features) -> Self {
        let data = a.data.iter().zip(&b.data).map(|(a, b)| b - a).collect();
        Self::of(&Features { data, ..*a })
    }
}

/// A finished comparison, ready to be heard and seen.
#[derive(Debug)]
pub struct Compared {
    /// Takes and figures.
    pub comparison: Comparison,
    /// The takes for the player, equally long.
    pub takes: [Arc<Take>; 2],
    /// What B has more of than A, A, and B.
    pub pictures: [Spectrogram; 3],
}

impl From<Comparison> for Compared {
    fn from(comparison: Comparison) -> Self {
        let longest = comparison.takes.iter().map(Vec::len).max().unwrap_or(0);
        let takes = [0, 1].map(|side| {
            let take = Take::new();
            take.append(&comparison.takes[side]);
            take.append(&vec![0.0; longest - comparison.takes[side].len()]);
            take.complete();
            take
        });
        let [a, b] = &comparison.mels;
        let pictures = [Spectrogram::difference(a, b), Spectrogram::of(a), Spectrogram::of(b)];
        Self { comparison, takes, pictures }
    }
}

/// How far it is.
#[derive(Debug, Clone, Default)]
pub enum Work {
    /// Nothing was compared yet.
    #[default]
    None,
    /// It is being made.
    Running {
        /// 0 to 1.
        fraction: f32,
        /// What is being done.
        what: String,
    },
    /// It is there.
    Done(Arc<Compared>),
    /// It could not be made.
    Failed(String),
}

/// What is listened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Heard {
    /// The first side.
    #[default]
    A,
    /// The second side.
    B,
    /// One of them, in a blind test.
    X,
}

/// Which picture is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Picture {
    /// What B has more of than A.
    #[default]
    Difference,
    /// The first side.
    A,
    /// The second side.
    B,
}

/// The panel.
#[derive(Debug, Default)]
pub struct CompareView {
    /// Whether it is there in place of the editor.
    pub open: bool,
    /// How far the comparison is.
    pub work: Work,
    /// What is listened to.
    pub heard: Heard,
    /// The blind test, if there is one.
    pub test: Option<Abx>,
    /// Which picture is shown.
    pub picture: Picture,
}

impl CompareView {
    /// What there is to hear and see, if it is.
    pub fn done(&self) -> Option<&Arc<Compared>> {
        if let Work::Done(compared) = &self.work { Some(compared) } else { None }
    }

    /// Whether a blind test is under way.
    pub fn is_testing(&self) -> bool {
        self.test.as_ref().is_some_and(|test| !test.is_over())
    }

    /// The take whose wave is shown: in a blind test always the same one, so that the picture tells nothing.
    pub fn shown_take(&self) -> Option<&Arc<Take>> {
        let second = self.heard == Heard::B && !self.is_testing();
        self.done().map(|compared| &compared.takes[usize::from(second)])
    }

    /// Whether the second side is what is heard.
    pub fn hears_second(&self) -> bool {
        match self.heard {
            Heard::A => false,
            Heard::B => true,
            Heard::X => self.test.as_ref().is_some_and(Abx::x_is_b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_named_by_what_differs() {
        let [f16, int8] = SideChoice::usual();
        assert_eq!((f16.name(&int8), int8.name(&f16)), ("f16".to_owned(), "int8".to_owned()));
        let four = SideChoice { steps: Some(4), ..int8.clone() };
        assert_eq!((four.name(&int8), int8.name(&four)), ("4 steps".to_owned(), "usual steps".to_owned()));
        assert_eq!(four.name(&f16), "int8, 4 steps");
        assert_eq!(int8.name(&int8), "int8");
        let folder = SideChoice { model: SideModel::Folder("/models/turbo".into()), ..int8.clone() };
        assert_eq!((folder.name(&int8), int8.name(&folder)), ("turbo".to_owned(), "model in use".to_owned()));
    }

    #[test]
    fn a_spectrogram_has_no_more_columns_than_a_screen_and_keeps_the_mean() {
        let mel = |value: f32| Features { data: vec![value; 5000 * 80], frames: 5000, bands: 80 };
        let (a, b) = (mel(-2.0), mel(-1.0));
        let difference = Spectrogram::difference(&a, &b);
        assert_eq!((difference.columns, difference.bands, difference.db.len()), (1250, 80, 100_000));
        assert!(difference.db.iter().all(|db| (db - 8.686).abs() < 0.001));
        assert_eq!(Spectrogram::of(&Features::default()).columns, 0);
    }
}
