//! What the application and the engine say to each other: plain `Send` data, no tensors.
//!
//! Commands are imperative, events are facts. A busy engine cannot read its mailbox, so a job carries its own
//! [`CancelToken`] and its own channel for sound. Every accepted job ends in exactly one of [`Event::Finished`],
//! [`Event::VoiceReady`], [`Event::Cancelled`] or [`Event::Failed`], and nothing about it follows that.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_channel::Sender;
use serde::{Deserialize, Serialize};

pub use crate::dsp::Pcm;
use crate::variant::Variant;
use crate::voice::Voice;

/// Sample rate of everything the engine speaks.
pub const SAMPLE_RATE_HZ: u32 = 24_000;

/// Names one job for its whole life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(u64);

impl JobId {
    /// A name never used before in this process.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A flag that a job looks at in every T3 step and every flow step.
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<AtomicBool>);

/// A flag that somebody else raises, such as a signal handler.
impl From<Arc<AtomicBool>> for CancelToken {
    fn from(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }
}

impl CancelToken {
    /// Asks the job to stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked to.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Where a model comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// The small model inside the program.
    Embedded,
    /// A folder with the files of a variant.
    Folder(PathBuf),
}

/// How numbers are stored and multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floats.
    #[default]
    F32,
    /// 16-bit floats.
    F16,
    /// 16-bit brain floats.
    Bf16,
    /// 8-bit integers with a scale per output channel.
    Int8,
}

impl Precision {
    /// All of them, the most exact first.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Int8];

    /// Those that this build computes with.
    pub fn available() -> &'static [Self] {
        &Self::ALL
    }

    /// What each part of a model is kept at when this is asked for.
    ///
    /// Eight bits are for T3 and the flow. The encoders of a voice run once per voice and turn small errors into other
    /// codes, so they get sixteen.
    pub fn plan(self) -> PrecisionPlan {
        match self {
            Self::Int8 => PrecisionPlan { t3: self, t3_cache: Self::F16, flow: self, encoders: Self::F16 },
            _ => PrecisionPlan { t3: self, t3_cache: self, flow: self, encoders: self },
        }
    }

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}

/// The precision of each part of a model; the vocoder, the voice encoder and the watermark are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PrecisionPlan {
    /// The backbone and the head of T3.
    pub t3: Precision,
    /// The keys and values that T3 looks back at.
    pub t3_cache: Precision,
    /// The token encoder and the estimator of S3Gen.
    pub flow: Precision,
    /// The S3 tokenizer and CAMPPlus.
    pub encoders: Precision,
}

/// Which processor runs the networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// The processor.
    #[default]
    Cpu,
    /// An NVIDIA card.
    Cuda,
    /// An Apple GPU.
    Metal,
}

impl DeviceKind {
    /// Those that this build runs on.
    pub fn available() -> &'static [Self] {
        crate::device::available()
    }
}

/// How to load a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadRequest {
    /// Which model.
    pub source: ModelSource,
    /// Which variant, where a folder holds several; `None` takes the only one.
    pub variant: Option<Variant>,
    /// How weights are stored.
    pub precision: Precision,
    /// Another precision for some parts than [`Precision::plan`] gives them.
    pub plan: Option<PrecisionPlan>,
    /// Where it runs.
    pub device: DeviceKind,
    /// Number of threads; `None` takes all cores.
    pub threads: Option<usize>,
    /// A folder for what a later load of the same can do without; `None` keeps nothing. At most 8 GiB are kept, what was
    /// used longest ago goes first.
    pub cache: Option<PathBuf>,
}

/// What is loaded.
#[derive(Debug, Clone)]
pub struct ModelInfo {
    /// The family member; the embedded model is of the English kind.
    pub variant: Variant,
    /// Name for people.
    pub title: String,
    /// Whether it is the small model inside the program.
    pub embedded: bool,
    /// How it is stored.
    pub precision: Precision,
    /// Where it runs, in words ("CPU, 2 threads, AVX-512").
    pub device: String,
    /// Number of threads.
    pub threads: usize,
    /// Languages it speaks, as codes; empty where there is no choice.
    pub languages: Vec<String>,
    /// Event tags such as `[laugh]` that may stand in the text.
    pub tags: Vec<String>,
    /// The settings it was made for.
    pub defaults: SpeakSettings,
    /// The voice that came with the model, if one did.
    pub builtin_voice: Option<Arc<Voice>>,
    /// Seconds of a reference clip that are heard: by T3 and by S3Gen.
    pub reference_secs: (f32, f32),
    /// Fingerprint of the T3 weights, in hex: provenance.
    pub model_hash: String,
    /// Time it took to load.
    pub load_ms: f64,
    /// Size of its files of weights.
    pub disk_bytes: u64,
}

/// Choices for one utterance. A field that a variant does not know is ignored by it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpeakSettings {
    /// Language code for multilingual models.
    pub language: Option<String>,
    /// Seed of every random choice.
    pub seed: u64,
    /// 0 takes the best token at each step.
    pub temperature: f32,
    /// Guidance weight; 0 runs a batch of one, about twice as fast.
    pub cfg_weight: f32,
    /// Emotion, 0.5 neutral.
    pub exaggeration: f32,
    /// Nucleus size.
    pub top_p: f32,
    /// Least probability relative to the best.
    pub min_p: f32,
    /// Number of candidates; 0 for all.
    pub top_k: usize,
    /// 1 for none.
    pub repetition_penalty: f32,
    /// Flow steps.
    pub steps: usize,
    /// Most speech tokens for one sentence (25 a second).
    pub max_tokens: usize,
    /// Alignment guard against early ends and hallucinated tails (Multilingual).
    pub alignment_guard: bool,
}

impl Default for SpeakSettings {
    fn default() -> Self {
        Self {
            language: None,
            seed: 0,
            temperature: 0.8,
            cfg_weight: 0.5,
            exaggeration: 0.5,
            top_p: 1.0,
            min_p: 0.05,
            top_k: 0,
            repetition_penalty: 1.2,
            steps: 10,
            max_tokens: 1000,
            alignment_guard: false,
        }
    }
}

/// A piece of finished, watermarked sound, in order.
#[derive(Debug, Clone)]
pub struct AudioChunk {
    /// 24 kHz mono.
    pub samples: Vec<f32>,
    /// Which sentence of the text it belongs to.
    pub sentence: usize,
    /// Bytes of the text that this sentence covers.
    pub text_range: Range<usize>,
}

/// Whether to wait for the whole or to speak at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Delivery {
    /// Small chunks first, each ready before the last is over.
    #[default]
    Streamed,
    /// Each sentence in one go, as the reference does.
    OneShot,
}

/// Speak a text.
#[derive(Debug, Clone)]
pub struct SpeakJob {
    /// Its name.
    pub id: JobId,
    /// What to say.
    pub text: String,
    /// In whose voice.
    pub voice: Arc<Voice>,
    /// How.
    pub settings: SpeakSettings,
    /// In chunks or at once.
    pub delivery: Delivery,
    /// Where the sound goes. A closed channel cancels the job; a full one makes it wait.
    pub audio: Sender<AudioChunk>,
    /// How it is stopped.
    pub cancel: CancelToken,
}

/// Say a recording again in another voice.
#[derive(Debug, Clone)]
pub struct ConvertJob {
    /// Its name.
    pub id: JobId,
    /// The recording.
    pub source: Pcm,
    /// In whose voice.
    pub voice: Arc<Voice>,
    /// Only `seed` and `steps` matter.
    pub settings: SpeakSettings,
    /// Where the sound goes.
    pub audio: Sender<AudioChunk>,
    /// How it is stopped.
    pub cancel: CancelToken,
}

/// Make a voice of a clip.
#[derive(Debug, Clone)]
pub struct PrepareJob {
    /// Its name.
    pub id: JobId,
    /// The clip, at its own rate.
    pub clip: Pcm,
    /// Name for people.
    pub name: String,
    /// How it is stopped.
    pub cancel: CancelToken,
}

/// Work through a voice before there is a text, so that its first words come as soon as later ones.
#[derive(Debug, Clone)]
pub struct WarmJob {
    /// The voice.
    pub voice: Arc<Voice>,
    /// Steps of the flow that it will probably speak with.
    pub steps: usize,
    /// How it is stopped.
    pub cancel: CancelToken,
}

/// What the engine can be told.
#[derive(Debug)]
pub enum Command {
    /// Load a model, dropping the one before. Answered by `LoadProgress`, then `Loaded` or `LoadFailed`.
    Load(LoadRequest),
    /// Answered by `VoiceReady`, `Cancelled` or `Failed`.
    Prepare(PrepareJob),
    /// Not answered.
    Warm(WarmJob),
    /// Answered by `Started`, `Progress` and one terminal event.
    Speak(SpeakJob),
    /// As `Speak`.
    Convert(ConvertJob),
    /// Drop the model and its memory. Answered by `Unloaded`.
    Unload,
    /// End the engine's thread.
    Shutdown,
}

/// Time spent in each stage of a job, in milliseconds. Stages overlap, so they may add up to more than the whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StageTimes {
    /// Preparing the voice.
    pub voice: f64,
    /// First pass of T3 over voice and text.
    pub prefill: f64,
    /// T3 steps.
    pub t3: f64,
    /// Encoder and solver of S3Gen.
    pub flow: f64,
    /// HiFT.
    pub vocoder: f64,
    /// Watermark.
    pub watermark: f64,
}

/// Figures of a job, so far or final.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Sound made.
    pub audio_secs: f64,
    /// Seconds of work per second of sound.
    pub rtf: f64,
    /// From the start of the job to the first chunk.
    pub ttfa_ms: f64,
    /// Speech tokens made.
    pub tokens: usize,
    /// Speech tokens per second of T3's own time, prefill left out.
    pub tokens_per_sec: f64,
    /// Work per stage.
    pub stages: StageTimes,
    /// What of it came before the first chunk.
    #[serde(default)]
    pub first_stages: StageTimes,
    /// Sentences finished.
    pub sentences_done: usize,
    /// Sentences in all.
    pub sentences: usize,
    /// Wall time of the job so far.
    pub wall_ms: f64,
}

/// What the engine reports.
#[derive(Debug)]
pub enum Event {
    /// Part of a model is loaded.
    LoadProgress {
        /// 0 to 1.
        fraction: f32,
        /// What is being loaded.
        part: &'static str,
    },
    /// A model is ready. Jobs may follow.
    Loaded(Box<ModelInfo>),
    /// The model could not be loaded; none is loaded now.
    LoadFailed {
        /// What was wrong and what to do.
        error: String,
    },
    /// No model is loaded now.
    Unloaded,
    /// The job has begun.
    Started {
        /// Which.
        job: JobId,
    },
    /// A voice is ready: the end of a `Prepare`.
    VoiceReady {
        /// Which.
        job: JobId,
        /// The voice.
        voice: Arc<Voice>,
        /// Time it took.
        ms: f64,
    },
    /// Figures so far, several times a second.
    Progress {
        /// Which.
        job: JobId,
        /// Figures.
        stats: Stats,
    },
    /// All sound has been sent.
    Finished {
        /// Which.
        job: JobId,
        /// Final figures.
        stats: Stats,
    },
    /// The job was stopped as asked.
    Cancelled {
        /// Which.
        job: JobId,
    },
    /// The job failed.
    Failed {
        /// Which.
        job: JobId,
        /// What was wrong and what to do.
        error: String,
        /// Whether other input would help.
        bad_input: bool,
    },
}

impl Event {
    /// The job it belongs to.
    pub fn job(&self) -> Option<JobId> {
        match self {
            Self::Started { job }
            | Self::VoiceReady { job, .. }
            | Self::Progress { job, .. }
            | Self::Finished { job, .. }
            | Self::Cancelled { job }
            | Self::Failed { job, .. } => Some(*job),
            _ => None,
        }
    }

    /// Whether nothing about the job follows.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::VoiceReady { .. } | Self::Finished { .. } | Self::Cancelled { .. } | Self::Failed { .. })
    }
}
