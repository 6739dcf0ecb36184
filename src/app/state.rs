//! What the window shows: what is remembered between runs ([`Settings`]) and what is not ([`State`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use myna_engine::protocol::{DeviceKind, ModelInfo, ModelSource, Precision, SpeakSettings, Stats};
use serde::{Deserialize, Serialize};

use crate::comparison::{CompareView, SideChoice};
use crate::download::Release;
use crate::export::Format;
use crate::library::{Clip, ClipId, Library, Reading};
use crate::player::{PlayerStatus, Take};
use crate::recorder::RecorderStatus;

/// Which theme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ThemeChoice {
    /// As the system has it.
    #[default]
    System,
    /// Light.
    Light,
    /// Dark.
    Dark,
}

/// What saved files are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExportChoice {
    /// Kind of file.
    pub kind: Format,
    /// 24000, 44100 or 48000.
    pub rate_hz: u32,
    /// Whether to bring the loudness to a common level.
    pub normalize: bool,
}

impl Default for ExportChoice {
    fn default() -> Self {
        Self { kind: Format::Wav16, rate_hz: 24_000, normalize: false }
    }
}

/// A voice as settings remember it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VoiceChoice {
    /// One that came with the program.
    Sample(String),
    /// A file.
    File(PathBuf),
    /// The one that came with the model.
    Model,
}

/// What is remembered between runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Theme.
    pub theme: ThemeChoice,
    /// Size of the window, in points.
    pub window: [f32; 2],
    /// Whether the settings panel is open; `None` leaves it to the width of the window.
    pub settings_open: Option<bool>,
    /// Whether the settings of sampling are unfolded.
    pub sampling_open: bool,
    /// Loudness.
    pub volume: f32,
    /// Chosen sound device.
    pub output: Option<String>,
    /// The text.
    pub text: String,
    /// The voice.
    pub voice: Option<VoiceChoice>,
    /// Clips opened before, latest first.
    pub clips: Vec<PathBuf>,
    /// Settings per model, by the model's title.
    pub speak: BTreeMap<String, SpeakSettings>,
    /// Whether every utterance takes the same seed.
    pub seed_locked: bool,
    /// Folder of the model; `None` for the one inside the program.
    pub model: Option<PathBuf>,
    /// How weights are stored.
    pub precision: Precision,
    /// Where the model runs.
    pub device: DeviceKind,
    /// The two sides of a comparison.
    pub compare: [SideChoice; 2],
    /// What saved files are like.
    pub export: ExportChoice,
    /// Folder of the last saved file.
    pub save_folder: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            theme: ThemeChoice::System,
            window: [1240.0, 780.0],
            settings_open: None,
            sampling_open: false,
            volume: 0.9,
            output: None,
            text: String::new(),
            voice: None,
            clips: Vec::new(),
            speak: BTreeMap::new(),
            seed_locked: false,
            model: None,
            precision: Precision::F32,
            device: DeviceKind::Cpu,
            compare: SideChoice::usual(),
            export: ExportChoice::default(),
            save_folder: None,
        }
    }
}

impl Settings {
    /// Where the model comes from.
    pub fn source(&self) -> ModelSource {
        self.model.clone().map_or(ModelSource::Embedded, ModelSource::Folder)
    }
}

/// What the engine of this build can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offers {
    /// Ways to store weights.
    pub precisions: Vec<Precision>,
    /// Processors.
    pub devices: Vec<DeviceKind>,
}

impl Offers {
    /// As the engine says.
    pub fn of_engine() -> Self {
        Self { precisions: Precision::available().to_vec(), devices: DeviceKind::available().to_vec() }
    }

    /// Puts the usual in place of what this build cannot do: settings may come from one that could do more.
    pub fn fit(&self, precision: &mut Precision, device: &mut DeviceKind) {
        if !self.precisions.contains(precision) {
            *precision = Default::default();
        }
        if !self.devices.contains(device) {
            *device = Default::default();
        }
    }
}

impl Default for Offers {
    fn default() -> Self {
        Self::of_engine()
    }
}

/// The model.
#[derive(Debug, Clone, Default)]
pub enum ModelState {
    /// Not asked for.
    #[default]
    Absent,
    /// On its way.
    Loading {
        /// 0 to 1.
        fraction: f32,
        /// What is being loaded.
        part: &'static str,
    },
    /// Put aside while two settings are compared, which takes memory and all cores.
    Aside(Arc<ModelInfo>),
    /// Ready to speak.
    Ready(Arc<ModelInfo>),
    /// It could not be loaded.
    Failed(String),
}

impl ModelState {
    /// What is loaded, if it is.
    pub fn info(&self) -> Option<&Arc<ModelInfo>> {
        if let Self::Ready(info) = self { Some(info) } else { None }
    }

    /// What the settings are for: the model that is loaded, or was and will be.
    pub fn described(&self) -> Option<&Arc<ModelInfo>> {
        if let Self::Aside(info) = self { Some(info) } else { self.info() }
    }
}

/// The chosen voice, as the engine has it.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum VoiceState {
    /// Nothing chosen, or no model yet.
    #[default]
    Unprepared,
    /// On its way.
    Preparing,
    /// Ready to speak.
    Ready {
        /// Time it took.
        ms: f64,
    },
    /// It cannot be used.
    Failed(String),
}

/// The latest utterance.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum JobState {
    /// None yet.
    #[default]
    Idle,
    /// Asked for; the voice or the model is not ready yet.
    Waiting,
    /// Being made.
    Speaking(Stats),
    /// Made.
    Done(Stats),
    /// Stopped on the way.
    Stopped(Stats),
    /// It went wrong.
    Failed(String),
}

impl JobState {
    /// Whether sound is being made or about to be.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Waiting | Self::Speaking(_))
    }

    /// Figures, if there are any.
    pub fn stats(&self) -> Option<&Stats> {
        match self {
            Self::Speaking(stats) | Self::Done(stats) | Self::Stopped(stats) => Some(stats),
            _ => None,
        }
    }
}

/// Released models: those that are here, and the one on its way.
#[derive(Debug, Default)]
pub struct Releases {
    /// Where they are kept, if this system has a place for them.
    pub folder: Option<PathBuf>,
    /// Names of those that are whole.
    pub here: BTreeSet<String>,
    /// The one that is being fetched.
    pub fetching: Option<Fetching>,
}

/// A model on its way.
#[derive(Debug, Clone)]
pub struct Fetching {
    /// Which.
    pub release: &'static Release,
    /// Bytes that are there.
    pub bytes: u64,
    /// When it began, and with how many bytes.
    pub begun: Option<(Instant, u64)>,
}

impl Fetching {
    /// Bytes a second so far.
    pub fn rate(&self) -> Option<f64> {
        let (at, from) = self.begun?;
        let secs = at.elapsed().as_secs_f64();
        (secs > 1.0 && self.bytes > from).then(|| (self.bytes - from) as f64 / secs)
    }
}

/// How a message is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Something went well.
    Good,
    /// Something went wrong.
    Bad,
}

/// A message at the top of the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// How it is meant.
    pub tone: Tone,
    /// What it says.
    pub text: String,
}

/// What the player holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDeck {
    /// The latest take.
    #[default]
    Speech,
    /// Two takes that are compared.
    Comparison,
    /// A clip that is being listened to.
    Clip(ClipId),
}

/// What the window shows.
#[derive(Debug, Default)]
pub struct State {
    /// What is remembered.
    pub settings: Settings,
    /// The model.
    pub model: ModelState,
    /// All voices.
    pub library: Library,
    /// The chosen voice.
    pub voice: VoiceState,
    /// The microphone.
    pub recorder: RecorderStatus,
    /// The latest utterance.
    pub job: JobState,
    /// Its sound.
    pub take: Option<Arc<Take>>,
    /// Its text, for sentence marks.
    pub take_text: String,
    /// Its probable length, in seconds.
    pub take_expected_secs: f32,
    /// Seed of the latest utterance.
    pub take_seed: Option<u64>,
    /// Figures of its playback; kept while a clip is listened to.
    pub take_player: PlayerStatus,
    /// The player, as it is now.
    pub player: PlayerStatus,
    /// What the player holds.
    pub on_deck: OnDeck,
    /// The comparison.
    pub compare: CompareView,
    /// Released models.
    pub releases: Releases,
    /// Messages, the oldest first.
    pub notices: VecDeque<Notice>,
    /// Whether a file is being written.
    pub saving: bool,
    /// Characters to be put at the cursor of the editor.
    pub insert: Option<String>,
    /// Whether the editor is to have the keyboard.
    pub focus_editor: bool,
    /// Whether something is being dragged over the window.
    pub dragging_files: bool,
    /// What the engine of this build can do.
    pub offers: Offers,
}

impl State {
    /// Settings for the next utterance: one's own for this model, or the model's.
    pub fn speak(&self) -> SpeakSettings {
        let own = self.model.described().and_then(|info| self.settings.speak.get(&info.title));
        own.cloned().unwrap_or_else(|| self.defaults())
    }

    /// Settings that the loaded model was made for.
    pub fn defaults(&self) -> SpeakSettings {
        self.model.described().map(|info| info.defaults.clone()).unwrap_or_default()
    }

    /// The chosen clip.
    pub fn clip(&self) -> Option<&Clip> {
        self.library.selected()
    }

    /// Whether the settings panel is shown in a window this wide.
    pub fn shows_settings(&self, width: f32) -> bool {
        self.settings.settings_open.unwrap_or(width >= crate::theme::WIDE_WINDOW)
    }

    /// Whether the deck is the comparison's.
    pub fn shows_comparison(&self) -> bool {
        self.compare.open && self.compare.done().is_some()
    }

    /// Why nothing can be spoken now, in words.
    pub fn obstacle(&self) -> Option<&'static str> {
        if self.settings.text.trim().is_empty() {
            return Some("There is no text yet");
        }
        match (&self.model, &self.voice, self.clip().map(|clip| &clip.reading)) {
            (ModelState::Failed(_) | ModelState::Absent, _, _) => Some("There is no model to speak with"),
            (ModelState::Aside(_), _, _) => Some("Two settings are being compared"),
            (_, _, None) => Some("There is no voice yet"),
            (_, VoiceState::Failed(_), _) | (_, _, Some(Reading::Failed(_))) => Some("This voice cannot be used"),
            _ => None,
        }
    }

    /// Says something at the top of the window.
    pub fn notify(&mut self, tone: Tone, text: impl Into<String>) {
        let notice = Notice { tone, text: text.into() };
        if self.notices.back() != Some(&notice) {
            self.notices.push_back(notice);
        }
        while self.notices.len() > 3 {
            self.notices.pop_front();
        }
    }
}

/// Seconds that a text will probably last when spoken.
pub fn estimated_secs(text: &str) -> f32 {
    text.chars()
        .map(|c| match c {
            '.' | '!' | '?' | '。' | '！' | '？' | '\n' => 0.3,
            ',' | ';' | ':' | '、' | '，' => 0.15,
            c if c.is_whitespace() => 0.05,
            '\u{2E80}'..='\u{9FFF}' | '\u{AC00}'..='\u{D7AF}' => 0.2,
            _ => 0.065,
        })
        .sum()
}
