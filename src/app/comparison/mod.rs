//! The same text, voice, seed and noise at two settings: two takes, their figures, and how far they are apart.

mod abx;
mod view;

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use myna_engine::agreement::agreement;
use myna_engine::dsp::Features;
use myna_engine::dsp::loudness::integrated_loudness;
use myna_engine::dsp::mel::s3gen_mel;
use myna_engine::files::write_atomically;
use myna_engine::model::Model;
use myna_engine::noise::SeededNoise;
use myna_engine::protocol::{CancelToken, Delivery, LoadRequest, ModelInfo, Pcm, SAMPLE_RATE_HZ, SpeakSettings, Stats};
use myna_engine::replay::Replay;
use myna_engine::synthesis::{SpeakRequest, Synthesis};
use myna_engine::trace::Trace;
use myna_engine::{Error, Voice, give_back_memory};
use serde::Serialize;

use crate::export::{self, Format, Provenance};
use crate::machine::{load_average, own_memory_bytes};
use crate::speech_measure::{cosine, median, speaker_embedding};

pub use abx::{Abx, Answer};
pub use view::{CompareView, Compared, Heard, Picture, SideChoice, SideModel, Spectrogram, Work, folder_name};

/// A natural logarithm of amplitudes in dB.
pub const DB_PER_NEPER: f64 = 20.0 / std::f64::consts::LN_10;

/// What one side is to be.
#[derive(Debug, Clone)]
pub struct SideWish {
    /// Name for people.
    pub name: String,
    /// The model.
    pub load: LoadRequest,
    /// Steps of the flow, where they differ from the settings that both share.
    pub steps: Option<usize>,
}

/// What is to be compared.
pub struct Wish<'a> {
    /// What both say.
    pub text: &'a str,
    /// The two sides.
    pub sides: [SideWish; 2],
    /// Measured takes of each side, in turn, after one to warm up.
    pub runs: u32,
    /// Settings that both share, given the model.
    pub settings: &'a dyn Fn(&ModelInfo) -> SpeakSettings,
    /// Makes the voice, given the model.
    pub voice: &'a dyn Fn(&Model) -> Result<Arc<Voice>>,
    /// How it is stopped.
    pub cancel: CancelToken,
}

impl std::fmt::Debug for Wish<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wish").field("text", &self.text).field("sides", &self.sides).finish_non_exhaustive()
    }
}

/// What one side is and does. Times are medians. Names are stable.
#[derive(Debug, Clone, Serialize)]
pub struct SideReport {
    /// How it differs from the other, in words.
    pub changes: String,
    /// Member of the family.
    pub variant: &'static str,
    /// How weights are stored.
    pub precision: &'static str,
    /// Processor in words.
    pub device: String,
    /// Settings with the seed.
    pub settings: SpeakSettings,
    /// Time to load the model.
    pub load_ms: f64,
    /// Streamed, after one take to warm up.
    pub ttfa_ms: f64,
    /// Streamed: work for a second of sound.
    pub rtf: f64,
    /// Speech tokens a second.
    pub tokens_per_sec: f64,
    /// Speech tokens of the take.
    pub tokens: usize,
    /// Length of the take.
    pub audio_secs: f64,
    /// What the process grew by from before loading to behind the first take.
    pub memory_bytes: u64,
    /// Files of the model.
    pub disk_bytes: u64,
    /// Cosine of the take's speaker embedding to the voice's, by the model's own VoiceEncoder; nothing for short takes.
    pub similarity: Option<f32>,
    /// Before both are made equally loud.
    pub loudness_lufs: Option<f64>,
    /// What made it as loud as the other.
    pub gain_db: f64,
}

/// The comparison in figures. Names are stable.
#[derive(Debug, Clone, Serialize)]
pub struct AbReport {
    /// What was said.
    pub text: String,
    /// In whose voice.
    pub voice: String,
    /// Seed of both.
    pub seed: u64,
    /// The first side.
    pub a: SideReport,
    /// The second side.
    pub b: SideReport,
    /// Steps at which B would have chosen A's token, were it in A's place (teacher forcing), with the same random number.
    pub token_agreement: f64,
    /// Root mean square difference of the sounds' log mels, both made from A's tokens, in dB.
    pub log_mel_db: f64,
    /// What is left after both were made equally loud.
    pub loudness_difference_lu: Option<f64>,
    /// Measured takes of each side.
    pub runs: u32,
    /// Threads of the first side.
    pub threads: usize,
    /// How busy the machine was.
    pub load_average: f64,
}

/// Two takes of the same, and what is known of them.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// Figures.
    pub report: AbReport,
    /// 24 kHz samples, equally loud.
    pub takes: [Vec<f32>; 2],
    /// S3Gen's log mels of what both make of A's tokens, frame by frame comparable.
    pub mels: [Features; 2],
    /// What the files say about where the takes come from.
    pub about: [Provenance; 2],
}

/// Compares; tests of the window have their own.
pub type Comparer = Arc<dyn Fn(&Wish<'_>, &mut dyn FnMut(f32, String)) -> Result<Comparison> + Send + Sync>;

/// Makes both takes, equally loud, and measures them. `progress` hears how far it is, 0 to 1, and what is being done.
///
/// # Errors
/// If a side's model, voice or text cannot be had, it says nothing, or it is stopped.
pub fn compare(wish: &Wish<'_>, progress: &mut dyn FnMut(f32, String)) -> Result<Comparison> {
    let steps = 2.0 * (2.0 + wish.runs as f32) + 3.0;
    let mut done = 0.0;
    let mut next = |what: String| -> Result<()> {
        if wish.cancel.is_cancelled() {
            return Err(Error::Cancelled.into());
        }
        progress(done / steps, what);
        done += 1.0;
        Ok(())
    };
    let mut begin = |side: &SideWish| Side::begin(wish, side, &mut next);
    let [mut a, mut b] = [begin(&wish.sides[0])?, begin(&wish.sides[1])?];
    for run in 1..=wish.runs {
        for side in [&mut a, &mut b] {
            next(format!("Measuring {}, take {run} of {}", side.name, wish.runs))?;
            let (_, stats) = side.speak(wish.text, Delivery::Streamed, Vec::new())?;
            side.stats.push(stats);
        }
    }
    next("Comparing tokens".to_owned())?;
    let found = agreement(&b.model, &b.request(wish.text, Delivery::OneShot, Vec::new()), &a.take.tokens)?;
    next("Comparing spectra".to_owned())?;
    let mels = mels_of_same_tokens(&a, &b)?;
    next("Comparing loudness".to_owned())?;
    let (loudness, gains_db) = make_equally_loud(&mut a.take.samples, &mut b.take.samples);
    let matched = [&a.take, &b.take].map(|take| integrated_loudness(&take.samples, SAMPLE_RATE_HZ));
    let report = AbReport {
        text: wish.text.to_owned(),
        voice: a.voice.name.clone(),
        seed: a.settings.seed,
        a: a.report(loudness[0], gains_db[0])?,
        b: b.report(loudness[1], gains_db[1])?,
        token_agreement: found.share(),
        log_mel_db: rms_difference(&mels) * DB_PER_NEPER,
        loudness_difference_lu: matched[0].zip(matched[1]).map(|(a, b)| (a - b).abs()),
        runs: wish.runs,
        threads: a.model.info().threads,
        load_average: load_average(),
    };
    let about = [&a, &b].map(|side| Provenance::of(side.model.info(), &side.voice, &side.settings));
    Ok(Comparison { report, takes: [a.take.samples, b.take.samples], mels, about })
}

impl Comparison {
    /// Writes both takes and the report into a folder: `a.wav`, `b.wav`, `report.json`. The report tells of a blind test
    /// if there was one.
    ///
    /// # Errors
    /// If the folder cannot be made or written.
    pub fn write(&self, folder: &Path, test: Option<&Abx>) -> Result<()> {
        std::fs::create_dir_all(folder).map_err(|e| Error::io(folder, e))?;
        for ((samples, about), name) in self.takes.iter().zip(&self.about).zip(["a.wav", "b.wav"]) {
            export::save(&folder.join(name), samples, SAMPLE_RATE_HZ, Format::Wav24, about)?;
        }
        let report = Written { report: &self.report, abx: test.map(AbxReport::of) };
        let json = serde_json::to_vec_pretty(&report)?;
        Ok(write_atomically(&folder.join("report.json"), |file| file.write_all(&json))?)
    }
}

/// What the file of a report holds.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    report: &'a AbReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    abx: Option<AbxReport>,
}

/// A blind test. Names are stable.
#[derive(Serialize)]
struct AbxReport {
    trials: usize,
    answered: usize,
    right: usize,
    p_value: f64,
}

impl AbxReport {
    fn of(test: &Abx) -> Self {
        let (trials, answered) = (test.trials(), test.answers().len());
        Self { trials, answered, right: test.right(), p_value: test.p_value() }
    }
}

/// One side at work.
struct Side {
    name: String,
    model: Arc<Model>,
    voice: Arc<Voice>,
    settings: SpeakSettings,
    cancel: CancelToken,
    memory_bytes: u64,
    stats: Vec<Stats>,
    take: Take,
}

/// What was said.
#[derive(Default)]
struct Take {
    samples: Vec<f32>,
    sentences: Vec<String>,
    tokens: Vec<Vec<u32>>,
}

impl Side {
    /// Loads the model and the voice, and speaks once to warm up; that take is the one that is compared.
    fn begin(wish: &Wish<'_>, side: &SideWish, next: &mut dyn FnMut(String) -> Result<()>) -> Result<Self> {
        give_back_memory();
        let before = own_memory_bytes();
        next(format!("Loading {}", side.name))?;
        let about = || format!("side {}", side.name);
        let model = Arc::new(Model::load(&side.load, &mut |_, _| ()).with_context(about)?);
        let mut settings = (wish.settings)(model.info());
        settings.steps = side.steps.unwrap_or(settings.steps);
        let voice = (wish.voice)(&model).with_context(about)?;
        let (name, cancel, take) = (side.name.clone(), wish.cancel.clone(), Take::default());
        let mut side = Self { name, model, voice, settings, cancel, memory_bytes: 0, stats: Vec::new(), take };
        next(format!("Speaking as {}", side.name))?;
        (side.take, _) = side.speak(wish.text, Delivery::Streamed, Vec::new())?;
        give_back_memory();
        side.memory_bytes = own_memory_bytes().saturating_sub(before);
        if side.take.samples.is_empty() {
            return Err(Error::input("the model said nothing; try another seed or a longer text").into());
        }
        Ok(side)
    }

    fn request(&self, text: &str, delivery: Delivery, tokens: Vec<u32>) -> SpeakRequest {
        SpeakRequest {
            text: text.to_owned(),
            voice: self.voice.clone(),
            noise: Arc::new(SeededNoise::new(self.settings.seed)),
            settings: self.settings.clone(),
            delivery,
            cancel: self.cancel.clone(),
            trace: Arc::new(Trace::off()),
            replay: Replay { tokens, mel: None },
        }
    }

    /// Speaks; with `tokens`, those instead of its own and no more.
    fn speak(&self, text: &str, delivery: Delivery, tokens: Vec<u32>) -> Result<(Take, Stats)> {
        let mut request = self.request(text, delivery, tokens);
        if !request.replay.tokens.is_empty() {
            request.settings.max_tokens = request.replay.tokens.len();
        }
        let mut synthesis = Synthesis::start(&self.model, request)?;
        let mut samples = Vec::new();
        while let Some(chunk) = synthesis.next_chunk(&mut |_| ())? {
            samples.extend(chunk.samples);
        }
        let sentences = synthesis.sentences().iter().map(|sentence| sentence.text.clone()).collect();
        Ok((Take { samples, sentences, tokens: synthesis.tokens().to_vec() }, synthesis.stats()))
    }

    fn report(&self, loudness_lufs: Option<f64>, gain_db: f64) -> Result<SideReport> {
        let of = |pick: fn(&Stats) -> f64| median(self.stats.iter().map(pick).collect());
        let info = self.model.info();
        let pcm = Pcm { samples: self.take.samples.clone(), sample_rate_hz: SAMPLE_RATE_HZ };
        let heard = speaker_embedding(&self.model, &pcm);
        Ok(SideReport {
            changes: self.name.clone(),
            variant: info.variant.spec().name,
            precision: info.precision.name(),
            device: info.device.clone(),
            settings: self.settings.clone(),
            load_ms: info.load_ms,
            ttfa_ms: of(|s| s.ttfa_ms),
            rtf: of(|s| s.rtf),
            tokens_per_sec: of(|s| s.tokens_per_sec),
            tokens: self.take.tokens.iter().map(Vec::len).sum(),
            audio_secs: f64::from(pcm.secs()),
            memory_bytes: self.memory_bytes,
            disk_bytes: info.disk_bytes,
            similarity: heard.map(|heard| cosine(&heard, &self.voice.t3.speaker_emb)),
            loudness_lufs,
            gain_db,
        })
    }
}

/// Brings the louder take down to the quieter; the loudness of both before, and the gains.
fn make_equally_loud(a: &mut [f32], b: &mut [f32]) -> ([Option<f64>; 2], [f64; 2]) {
    let loudness = [&*a, &*b].map(|samples| integrated_loudness(samples, SAMPLE_RATE_HZ));
    let quieter = loudness[0].zip(loudness[1]).map(|(a, b)| a.min(b));
    let gains_db = loudness.map(|own| own.zip(quieter).map_or(0.0, |(own, quieter)| quieter - own));
    for (samples, gain_db) in [a, b].into_iter().zip(gains_db) {
        let gain = 10f64.powf(gain_db / 20.0) as f32;
        samples.iter_mut().for_each(|sample| *sample *= gain);
    }
    (loudness, gains_db)
}

/// The mels of what both make of A's tokens, sentence by sentence: then both are equally long.
fn mels_of_same_tokens(a: &Side, b: &Side) -> Result<[Features; 2]> {
    let mut mels = [Features::default(), Features::default()];
    for (text, tokens) in a.take.sentences.iter().zip(&a.take.tokens).filter(|(_, tokens)| !tokens.is_empty()) {
        for (side, whole) in [a, b].into_iter().zip(&mut mels) {
            let (take, _) = side.speak(text, Delivery::OneShot, tokens.clone())?;
            let mel = s3gen_mel(&take.samples)?;
            whole.data.extend(mel.data);
            whole.frames += mel.frames;
            whole.bands = mel.bands;
        }
    }
    Ok(mels)
}

fn rms_difference([a, b]: &[Features; 2]) -> f64 {
    let squares = a.data.iter().zip(&b.data).map(|(a, b)| f64::from(a - b).powi(2));
    (squares.sum::<f64>() / a.data.len().min(b.data.len()).max(1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_become_equally_loud_by_quietening_one() {
        let tone = |gain: f32| (0..48_000).map(|i| gain * (i as f32 * 0.1).sin()).collect::<Vec<f32>>();
        let (mut quiet, mut loud) = (tone(0.1), tone(0.4));
        let (before, gains) = make_equally_loud(&mut quiet, &mut loud);
        let lufs = |samples: &[f32]| integrated_loudness(samples, SAMPLE_RATE_HZ).unwrap_or(0.0);
        assert!(before[1].unwrap_or(0.0) - before[0].unwrap_or(0.0) > 11.9 && gains[0] == 0.0, "{before:?} {gains:?}");
        assert!((lufs(&quiet) - lufs(&loud)).abs() < 0.1 && quiet == tone(0.1));
    }
}
