//! Speech of the embedded model, and where its pieces meet.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use myna::library::{Library, read};
use myna_engine::model::Model;
use myna_engine::noise::{NoiseSource, SeededNoise};
use myna_engine::protocol::{
    AudioChunk, CancelToken, Delivery, DeviceKind, LoadRequest, ModelSource, Precision, SpeakSettings,
};
use myna_engine::replay::Replay;
use myna_engine::synthesis::{SpeakRequest, Synthesis};
use myna_engine::trace::Trace;
use myna_engine::{Error, Voice};

pub fn load(source: ModelSource) -> Arc<Model> {
    let request = LoadRequest {
        source,
        variant: None,
        precision: Precision::F32,
        plan: None,
        device: DeviceKind::Cpu,
        threads: None,
        cache: None,
    };
    Arc::new(Model::load(&request, &mut |_, _| ()).unwrap())
}

/// The embedded model as an ordinary checkpoint: without the masks that make its streaming exact.
pub fn without_masks(folder: &Path) -> Arc<Model> {
    edited(folder, |config| {
        config["flow"].as_object_mut().unwrap().remove("chunk_causal").expect("the embedded model has masks");
    })
}

/// The embedded model with another configuration.
pub fn edited(folder: &Path, edit: impl FnOnce(&mut serde_json::Value)) -> Arc<Model> {
    let embedded = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/embedded");
    for entry in std::fs::read_dir(embedded).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    let path = folder.join("config.json");
    let mut config = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    edit(&mut config);
    std::fs::write(&path, config.to_string()).unwrap();
    load(ModelSource::Folder(folder.to_owned()))
}

pub fn voice(model: &Model, name: &str) -> Arc<Voice> {
    let clip = read(&Library::with_samples().by_name(name).unwrap().origin).unwrap();
    Arc::new(model.prepare_voice(&clip.pcm, name, &CancelToken::default(), &Trace::off()).unwrap())
}

/// Tokens of one text; a checkpoint with random weights does not know where to end.
const MOST_TOKENS: usize = 200;

/// A text to be spoken with a seed.
#[derive(Clone, Copy)]
pub struct Line<'a> {
    pub text: &'a str,
    pub seed: u64,
    /// Seed of the noise that the same words are spoken with, where it is not the same.
    pub sound_seed: Option<u64>,
    pub voice: &'a Arc<Voice>,
}

impl<'a> Line<'a> {
    pub fn new(text: &'a str, seed: u64, voice: &'a Arc<Voice>) -> Self {
        Self { text, seed, sound_seed: None, voice }
    }
}

/// What came of it.
pub struct Spoken {
    pub samples: Vec<f32>,
    pub chunks: Vec<usize>,
    /// First samples of pieces that were decoded apart, without that of the first.
    pub seams: Vec<usize>,
}

/// Speaks with the noise of a seed.
pub fn speak(model: &Arc<Model>, line: &Line<'_>, delivery: Delivery, trace: Trace) -> Spoken {
    let noise = Arc::new(SeamNoise::new(line.seed, line.sound_seed.unwrap_or(line.seed)));
    let request = SpeakRequest { noise: noise.clone(), trace: Arc::new(trace), ..request(model, line, delivery) };
    let chunks = run(model, request).unwrap();
    let seams = noise.seams();
    let lengths = chunks.iter().map(|chunk| chunk.samples.len()).collect();
    Spoken { samples: chunks.into_iter().flat_map(|chunk| chunk.samples).collect(), chunks: lengths, seams }
}

pub fn request(model: &Model, line: &Line<'_>, delivery: Delivery) -> SpeakRequest {
    SpeakRequest {
        text: line.text.to_owned(),
        voice: line.voice.clone(),
        settings: SpeakSettings { seed: line.seed, max_tokens: MOST_TOKENS, ..model.info().defaults.clone() },
        delivery,
        cancel: CancelToken::default(),
        noise: Arc::new(SeededNoise::new(line.seed)),
        trace: Arc::new(Trace::off()),
        replay: Replay::default(),
    }
}

/// All chunks of a request.
pub fn run(model: &Arc<Model>, request: SpeakRequest) -> Result<Vec<AudioChunk>, Error> {
    let mut synthesis = Synthesis::start(model, request)?;
    let mut chunks = Vec::new();
    while let Some(chunk) = synthesis.next_chunk(&mut |_| ())? {
        chunks.push(chunk);
    }
    Ok(chunks)
}

/// The noise of a seed, which notes where the vocoder begins a new piece: what lies ahead of a piece is asked for with it,
/// and again with the next one. In which order frames are asked for, by several threads, says nothing.
#[derive(Debug)]
struct SeamNoise {
    words: SeededNoise,
    sound: SeededNoise,
    /// How often the frame that begins at this sample was asked for.
    asked: Mutex<BTreeMap<usize, usize>>,
}

impl SeamNoise {
    fn new(words: u64, sound: u64) -> Self {
        Self { words: SeededNoise::new(words), sound: SeededNoise::new(sound), asked: Mutex::default() }
    }

    /// First samples of frames that were asked for again, where those before them were not.
    fn seams(&self) -> Vec<usize> {
        let asked = self.asked.lock().unwrap();
        let mut seams = Vec::new();
        let mut again_before = false;
        for (&start, &times) in asked.iter() {
            if times > 1 && !again_before {
                seams.push(start);
            }
            again_before = times > 1;
        }
        seams
    }
}

impl NoiseSource for SeamNoise {
    fn uniform(&self, sentence: usize, step: usize) -> f32 {
        self.words.uniform(sentence, step)
    }

    fn flow(&self, sentence: usize, start: usize, frames: usize) -> Vec<f32> {
        self.sound.flow(sentence, start, frames)
    }

    fn prompt_flow(&self, start: usize, frames: usize) -> Vec<f32> {
        self.sound.prompt_flow(start, frames)
    }

    fn phases(&self, sentence: usize, harmonics: usize) -> Vec<f32> {
        self.sound.phases(sentence, harmonics)
    }

    fn source(&self, sentence: usize, start: usize, samples: usize, harmonics: usize) -> Vec<f32> {
        *self.asked.lock().unwrap().entry(start).or_default() += 1;
        self.sound.source(sentence, start, samples, harmonics)
    }
}
