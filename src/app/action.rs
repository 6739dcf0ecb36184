//! Everything that can be asked of the application, by mouse or by key.

use std::ops::Range;
use std::path::PathBuf;

use myna_engine::protocol::{DeviceKind, Precision, SpeakSettings};

use crate::comparison::{Heard, Picture, SideChoice};
use crate::library::ClipId;
use crate::state::{ExportChoice, ThemeChoice};

/// A wish of the person at the window. Panels return them, [`crate::app::App`] carries them out.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Speak the text, now.
    Speak,
    /// Stop speaking and playing.
    Stop,
    /// Play or hold.
    TogglePlay,
    /// Hear the take from its start.
    Replay,
    /// Go to a moment of the take, in seconds.
    Seek(f32),
    /// Save the take.
    Save,
    /// What saved files are like.
    Export(ExportChoice),
    /// How loud.
    Volume(f32),
    /// On which device; `None` for the system's own choice.
    OutputDevice(Option<String>),
    /// Look for sound devices.
    ListDevices,

    /// Speak in this voice.
    SelectVoice(ClipId),
    /// Choose a clip from the disk.
    OpenClip,
    /// Clips were dropped on the window.
    DropFiles(Vec<PathBuf>),
    /// Forget a clip of one's own.
    RemoveVoice(ClipId),
    /// Use this part of a clip, in seconds.
    Trim(ClipId, Range<f32>),
    /// Show this part of a clip while a hand is still moving its end.
    TrimPreview(ClipId, Range<f32>),
    /// Hear the part of the clip that is used, or stop hearing it.
    Preview(ClipId),
    /// Record a clip.
    Record,
    /// End the recording and keep it.
    FinishRecording,
    /// End the recording and forget it.
    CancelRecording,

    /// Put a tag where the cursor is.
    InsertTag(String),
    /// Take this text, to try a voice with.
    TryText(&'static str),
    /// Other settings for the next utterance.
    Settings(SpeakSettings),
    /// The settings that the model was made for.
    Defaults,
    /// Another seed.
    NewSeed,
    /// Keep the seed, or draw one for every utterance.
    LockSeed(bool),
    /// How weights are stored.
    Precision(Precision),
    /// Where the model runs.
    Device(DeviceKind),

    /// Choose a folder with a model.
    ChooseModel,
    /// Take the model inside the program.
    EmbeddedModel,
    /// Take the model in this folder.
    UseModel(PathBuf),
    /// Fetch the released model of this name.
    FetchModel(&'static str),
    /// Stop fetching; what is there is kept.
    StopFetching,
    /// Try to load the model again.
    ReloadModel,

    /// Show the comparison of two settings, or the editor.
    ShowComparison(bool),
    /// What the first or the second side is to be.
    ComparisonSide(usize, SideChoice),
    /// Choose a folder with a model for a side.
    ComparisonModel(usize),
    /// Make both takes.
    Compare,
    /// Listen to a side, from where the listener is.
    Hear(Heard),
    /// Show this picture.
    ComparisonPicture(Picture),
    /// Begin a blind test of so many trials.
    BeginTest(usize),
    /// X is the second side, or the first.
    AnswerTest(bool),
    /// End the blind test, or forget the last one.
    EndTest,
    /// Save both takes and the report.
    SaveComparison,

    /// Light, dark or as the system.
    Theme(ThemeChoice),
    /// Show or hide the settings.
    ShowSettings(bool),
    /// Unfold or fold the settings of sampling.
    ShowSampling(bool),
    /// Close the message at the top.
    Dismiss,
}
