//! Speech out of text, pulled chunk by chunk.
//!
//! ```text
//! text -> sentences -> TokenFeed (T3, its own thread) -> S3Gen -> HiFT -> watermark -> AudioChunk
//! ```
//!
//! The sizes of the chunks follow a fixed ladder and not a clock: where a checkpoint's decoder looks at its whole
//! context, the sound depends a little on where chunks end, and a seed has to mean the same sound on every machine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::Tensor;

use crate::error::{Error, Result};
use crate::model::Model;
use crate::noise::NoiseSource;
use crate::protocol::{AudioChunk, CancelToken, Delivery, SAMPLE_RATE_HZ, SpeakSettings, StageTimes, Stats};
use crate::replay::Replay;
use crate::s3gen::hift::HiftState;
use crate::s3gen::{FlowOptions, FlowRun, S3GenReference, S3GenState};
use crate::sampling::SamplingOptions;
use crate::t3::{ALIGNED_HEADS, Backbone, DecodeOptions, START_TEXT, STOP_TEXT};
use crate::text::{Boundary, Language, Sentence, SplitOptions, split};
use crate::token_feed::{Fed, FeedJob, TokenFeed};
use crate::trace::Trace;
use crate::variant::Variant;
use crate::voice::Voice;
use crate::watermark::WatermarkState;

/// Longest text in one job.
pub const MAX_TEXT_CHARS: usize = 200_000;
/// Samples of one speech token.
const SAMPLES_PER_TOKEN: usize = 960;
/// Silence that Turbo and Nano were trained to end on.
const SILENCE_CODE: u32 = 4299;
const SILENCE_CODES: usize = 3;
/// Tokens that S3Gen looks ahead.
const LOOKAHEAD_TOKENS: usize = 3;
/// Tokens of the first chunk: the shortest whose sound is longer than the watermark's look-ahead.
const FIRST_TOKENS: usize = 8;
/// Tokens that T3 makes before S3Gen begins.
pub(crate) const FIRST_CHUNK_TOKENS: usize = FIRST_TOKENS + LOOKAHEAD_TOKENS;
/// Growth of chunks: each is ready before the one before has been heard, down to a real-time factor of 0.6.
const GROWTH: f32 = 1.5;
/// Largest chunk: two seconds, so that cost and delay stay bounded.
const MOST_TOKENS: usize = 50;
/// How often progress is reported while waiting for T3.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// What to say, and how.
#[derive(Debug)]
pub struct SpeakRequest {
    /// The text.
    pub text: String,
    /// The voice.
    pub voice: Arc<Voice>,
    /// Choices.
    pub settings: SpeakSettings,
    /// In chunks or at once.
    pub delivery: Delivery,
    /// Looked at in every step.
    pub cancel: CancelToken,
    /// Randomness.
    pub noise: Arc<dyn NoiseSource>,
    /// Where stages are recorded.
    pub trace: Arc<Trace>,
    /// What is taken from recordings.
    pub replay: Replay,
}

/// A text on its way to sound. Dropping it stops all work.
pub struct Synthesis {
    model: Arc<Model>,
    request: SpeakRequest,
    sentences: Vec<Sentence>,
    reference: S3GenReference,
    flow_options: FlowOptions,
    feed: TokenFeed,
    /// The sentence being spoken.
    at: usize,
    open: Option<OpenSentence>,
    /// S3Gen after the voice's prompt.
    primed: Option<S3GenState>,
    watermark: Option<WatermarkState>,
    next_tokens: usize,
    /// What T3 chose for each sentence so far.
    tokens: Vec<Vec<u32>>,
    /// Tokens taken from the feed.
    taken: usize,
    begun: Instant,
    first_sound: Option<(Duration, StageTimes)>,
    samples: usize,
    stages: StageTimes,
}

/// A sentence between its first and its last chunk.
struct OpenSentence {
    s3gen: S3GenState,
    hift: HiftState,
    ended: bool,
    decoded_tokens: usize,
}

impl std::fmt::Debug for Synthesis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Synthesis").field("sentence", &self.at).field("samples", &self.samples).finish_non_exhaustive()
    }
}

impl Synthesis {
    /// Checks everything, splits the text and starts T3.
    ///
    /// # Errors
    /// If the text is empty or too long, or text, voice or settings do not fit the model.
    pub fn start(model: &Arc<Model>, request: SpeakRequest) -> Result<Self> {
        let begun = Instant::now();
        check_settings(&request.settings)?;
        let sentences = model.split_text(&request.text)?;
        let texts = model.encode_sentences(&sentences, &request.settings)?;
        if texts.len() == 1 {
            let framed = match model.config.t3.backbone {
                Backbone::Llama => [&[START_TEXT], texts[0].as_slice(), &[STOP_TEXT]].concat(),
                Backbone::Gpt2 => texts[0].clone(),
            };
            request.trace.ids("text_tokens", &framed)?;
        }
        let cond = model.conditioning(&request.voice, request.settings.exaggeration)?;
        let reference = model.reference(&request.voice)?;
        let flow_options = model.flow_options(request.settings.steps);
        let streamed = request.delivery == Delivery::Streamed;
        if request.replay.mel.is_some() && (streamed || sentences.len() > 1) {
            return Err(Error::input("a recorded mel replaces that of one sentence made in one go"));
        }
        let mean_flow_tail = matches!(model.variant, Variant::Turbo | Variant::Nano);
        let job = FeedJob {
            cond,
            texts,
            options: model.decode_options(&request),
            tail: if mean_flow_tail { vec![SILENCE_CODE; SILENCE_CODES] } else { Vec::new() },
            noise: request.noise.clone(),
            trace: request.trace.clone(),
            cancel: request.cancel.clone(),
            gated: streamed,
        };
        let feed = TokenFeed::start(model, job)?;
        // In one go the mark follows the reference's rule, which needs the whole clip.
        let whole = !streamed && sentences.len() == 1;
        let watermark = if whole { None } else { Some(model.watermarker.start()) };
        Ok(Self {
            model: model.clone(),
            request,
            sentences,
            reference,
            flow_options,
            feed,
            at: 0,
            open: None,
            primed: None,
            watermark,
            next_tokens: FIRST_CHUNK_TOKENS,
            tokens: Vec::new(),
            taken: 0,
            begun,
            first_sound: None,
            samples: 0,
            stages: StageTimes::default(),
        })
    }

    /// The next piece of sound; nothing after the last. `progress` hears figures while T3 is waited for.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if asked to stop, or what went wrong; the synthesis is of no more use then.
    pub fn next_chunk(&mut self, progress: &mut dyn FnMut(&Stats)) -> Result<Option<AudioChunk>> {
        loop {
            if self.request.cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            if self.at == self.sentences.len() {
                return self.finish();
            }
            let sentence = self.at;
            let wav = match self.request.delivery {
                Delivery::Streamed => self.stream(progress)?,
                Delivery::OneShot => self.whole_sentence(progress)?,
            };
            let samples = self.mark(&wav)?;
            if !samples.is_empty() {
                return Ok(Some(self.chunk(samples, sentence)));
            }
        }
    }

    /// What is still in the watermark's look-ahead, once.
    fn finish(&mut self) -> Result<Option<AudioChunk>> {
        let Some(state) = self.watermark.take() else { return Ok(None) };
        let started = Instant::now();
        let rest = self.model.lanes.all.install(|| self.model.watermarker.finish(state))?;
        self.stages.watermark += ms(started);
        self.request.trace.finish()?;
        Ok((!rest.is_empty()).then(|| self.chunk(rest, self.sentences.len() - 1)))
    }

    fn chunk(&mut self, samples: Vec<f32>, sentence: usize) -> AudioChunk {
        if self.first_sound.is_none() {
            self.first_sound = Some((self.begun.elapsed(), self.stage_times()));
        }
        self.feed.release();
        self.samples += samples.len();
        AudioChunk { samples, sentence, text_range: self.sentences[sentence].range.clone() }
    }

    /// One chunk of the current sentence, and the pause behind it if it was the last.
    fn stream(&mut self, progress: &mut dyn FnMut(&Stats)) -> Result<Vec<f32>> {
        let mut tokens = Vec::new();
        let mut ended = false;
        self.feed.allow(self.taken + self.next_tokens);
        let mut open = match self.open.take() {
            Some(open) => open,
            None => OpenSentence {
                s3gen: self.begin_sentence()?,
                hift: HiftState::new(self.at),
                ended: false,
                decoded_tokens: 0,
            },
        };
        while !ended && tokens.len() < self.next_tokens {
            match self.next_fed(progress)? {
                Fed::Token(token) | Fed::Tail(token) => tokens.push(token),
                Fed::SentenceEnd => ended = true,
            }
        }
        self.taken += tokens.len();
        self.next_tokens = ((self.next_tokens as f32 * GROWTH) as usize).min(MOST_TOKENS);
        open.decoded_tokens += tokens.len();
        open.ended = ended;
        let mut wav = if open.decoded_tokens == 0 { Vec::new() } else { self.decode(&mut open, &tokens)? };
        if ended {
            self.cut_tail(&mut wav, open.decoded_tokens);
            self.add_pause(&mut wav);
            self.at += 1;
        } else {
            self.open = Some(open);
        }
        Ok(wav)
    }

    fn begin_sentence(&mut self) -> Result<S3GenState> {
        if let Some(state) = &self.primed {
            return Ok(state.clone());
        }
        let started = Instant::now();
        let request = &self.request;
        let state = self.model.lanes.all.install(|| {
            let cancelled = || request.cancel.is_cancelled();
            let run = FlowRun { noise: &*request.noise, sentence: self.at, cancelled: &cancelled };
            self.model.primed(&request.voice, &self.flow_options, &run)
        })?;
        self.stages.flow += ms(started);
        self.primed = Some(state.clone());
        Ok(state)
    }

    fn decode(&mut self, open: &mut OpenSentence, tokens: &[u32]) -> Result<Vec<f32>> {
        let lanes = &self.model.lanes;
        let lane = if self.feed.s3gen_begins() { &lanes.s3gen } else { &lanes.all };
        let started = Instant::now();
        let (request, sentence) = (&self.request, self.at);
        let mel = lane.install(|| {
            let cancelled = || request.cancel.is_cancelled();
            let run = FlowRun { noise: &*request.noise, sentence, cancelled: &cancelled };
            self.model.s3gen.decode(&mut open.s3gen, tokens, open.ended, &run)
        })?;
        self.stages.flow += ms(started);
        let started = Instant::now();
        let hift = &self.model.hift;
        let ahead = mel.lookahead.as_ref();
        let noise = &*self.request.noise;
        let wav = lane.install(|| hift.decode(&mut open.hift, noise, &mel.frames, ahead, open.ended))?;
        self.stages.vocoder += ms(started);
        Ok(wav)
    }

    /// The current sentence in one go, as the reference does it.
    fn whole_sentence(&mut self, progress: &mut dyn FnMut(&Stats)) -> Result<Vec<f32>> {
        let mut tokens = Vec::new();
        while let Fed::Token(token) | Fed::Tail(token) = self.next_fed(progress)? {
            tokens.push(token);
        }
        let mut wav = if tokens.is_empty() { Vec::new() } else { self.decode_whole(&tokens)? };
        self.cut_tail(&mut wav, tokens.len());
        if self.sentences.len() > 1 {
            self.add_pause(&mut wav);
        }
        self.request.trace.ids("speech_tokens", &tokens)?;
        self.request.trace.floats("wav", &wav, (1, wav.len()))?;
        self.at += 1;
        Ok(wav)
    }

    fn decode_whole(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let started = Instant::now();
        let all = self.model.lanes.all.clone();
        let trace = &self.request.trace;
        let channels_first = |t: &Tensor| -> Result<Tensor> { Ok(t.transpose(1, 2)?.contiguous()?) };
        let mel = match &self.request.replay.mel {
            Some(mel) => mel.frames(self.model.t3.device())?,
            None => {
                let flow = all.install(|| {
                    let cancelled = || self.request.cancel.is_cancelled();
                    let run = FlowRun { noise: &*self.request.noise, sentence: self.at, cancelled: &cancelled };
                    self.model.s3gen.trace(&self.reference, tokens, &self.flow_options, &run)
                })?;
                trace.tensor("mu", &channels_first(&flow.mu)?)?;
                flow.mel
            }
        };
        self.stages.flow += ms(started);
        let started = Instant::now();
        let sound = all.install(|| self.model.hift.forward(&mel, &*self.request.noise, self.at))?;
        self.stages.vocoder += ms(started);
        if trace.is_on() {
            trace.tensor("mel", &channels_first(&mel)?)?;
            trace.floats("f0", &sound.f0, (1, sound.f0.len()))?;
            trace.floats("source", &sound.source, (1, 1, sound.source.len()))?;
        }
        Ok(sound.faded())
    }

    /// The next item of the feed, with progress while it is waited for.
    fn next_fed(&mut self, progress: &mut dyn FnMut(&Stats)) -> Result<Fed> {
        loop {
            if self.request.cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            if let Some(fed) = self.feed.next(PROGRESS_INTERVAL)? {
                if let Fed::Token(token) = fed {
                    self.tokens.resize_with(self.tokens.len().max(self.at + 1), Vec::new);
                    self.tokens[self.at].push(token);
                }
                return Ok(fed);
            }
            progress(&self.stats());
        }
    }

    /// Multilingual: the reference drops the sound of the last token.
    fn cut_tail(&self, wav: &mut Vec<f32>, tokens: usize) {
        if self.model.variant.spec().multilingual && tokens > 1 {
            wav.truncate(wav.len().saturating_sub(SAMPLES_PER_TOKEN));
        }
    }

    /// Silence up to the pause that belongs behind the sentence, less what the model ended on.
    fn add_pause(&self, wav: &mut Vec<f32>) {
        if self.at + 1 == self.sentences.len() {
            return;
        }
        let pause = (self.sentences[self.at].pause_secs * SAMPLE_RATE_HZ as f32) as usize;
        let silent = wav.iter().rev().take_while(|s| s.abs() < QUIET).count();
        wav.resize(wav.len() + pause.saturating_sub(silent), 0.0);
    }

    fn mark(&mut self, wav: &[f32]) -> Result<Vec<f32>> {
        let started = Instant::now();
        let marker = &self.model.watermarker;
        let all = &self.model.lanes.all;
        let marked = match &mut self.watermark {
            Some(state) => all.install(|| marker.push(state, wav))?,
            None => {
                let marked = all.install(|| marker.apply(wav))?;
                self.request.trace.floats("watermarked", &marked, (1, marked.len()))?;
                self.request.trace.finish()?;
                marked
            }
        };
        self.stages.watermark += ms(started);
        Ok(marked)
    }

    /// The sentences that the text is spoken in.
    pub fn sentences(&self) -> &[Sentence] {
        &self.sentences
    }

    /// The speech tokens that T3 chose for each sentence so far.
    pub fn tokens(&self) -> &[Vec<u32>] {
        &self.tokens
    }

    fn stage_times(&self) -> StageTimes {
        let t3 = self.feed.times();
        StageTimes { prefill: t3.prefill.as_secs_f64() * 1e3, t3: t3.steps.as_secs_f64() * 1e3, ..self.stages }
    }

    /// Figures so far.
    pub fn stats(&self) -> Stats {
        let t3 = self.feed.times();
        let audio_secs = self.samples as f64 / f64::from(SAMPLE_RATE_HZ);
        let wall = self.begun.elapsed().as_secs_f64();
        let steps = t3.steps.as_secs_f64();
        Stats {
            audio_secs,
            rtf: if audio_secs > 0.0 { wall / audio_secs } else { 0.0 },
            ttfa_ms: self.first_sound.map_or(0.0, |(after, _)| after.as_secs_f64() * 1e3),
            tokens: t3.tokens,
            tokens_per_sec: if steps > 0.0 { t3.tokens as f64 / steps } else { 0.0 },
            stages: self.stage_times(),
            first_stages: self.first_sound.map(|(_, stages)| stages).unwrap_or_default(),
            sentences_done: self.at,
            sentences: self.sentences.len(),
            wall_ms: wall * 1e3,
        }
    }
}

/// Below this a sample is silence (-50 dBFS).
const QUIET: f32 = 0.003;

fn ms(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e3
}

fn check_settings(settings: &SpeakSettings) -> Result<()> {
    let fits = |name: &str, value: f32, range: std::ops::RangeInclusive<f32>| {
        if range.contains(&value) {
            return Ok(());
        }
        Err(Error::input(format!("{name} {value} is out of range; choose {} to {}", range.start(), range.end())))
    };
    fits("temperature", settings.temperature, 0.0..=5.0)?;
    fits("cfg weight", settings.cfg_weight, 0.0..=10.0)?;
    fits("exaggeration", settings.exaggeration, 0.0..=5.0)?;
    fits("top-p", settings.top_p, 0.0..=1.0)?;
    fits("min-p", settings.min_p, 0.0..=1.0)?;
    fits("repetition penalty", settings.repetition_penalty, 0.1..=10.0)?;
    if settings.steps == 0 || settings.steps > 200 {
        return Err(Error::input(format!("{} flow steps are out of range; choose 1 to 200", settings.steps)));
    }
    if settings.max_tokens == 0 {
        return Err(Error::input("at most 0 tokens would be no speech; choose at least 1"));
    }
    Ok(())
}

impl Model {
    /// The pieces a text is spoken in: the whole, if it is short enough to be spoken in one go.
    pub(crate) fn split_text(&self, text: &str) -> Result<Vec<Sentence>> {
        let chars = text.chars().count();
        if text.trim().is_empty() {
            return Err(Error::input("there is no text to speak; type at least one word"));
        }
        if chars > MAX_TEXT_CHARS {
            return Err(Error::input(format!(
                "the text has {chars} characters; Myna speaks up to {MAX_TEXT_CHARS} at a time"
            )));
        }
        if chars <= self.config.max_chars {
            let whole = Sentence {
                range: 0..text.len(),
                text: text.to_owned(),
                boundary: Boundary::Paragraph,
                pause_secs: 0.0,
            };
            return Ok(vec![whole]);
        }
        let options = SplitOptions { max_chars: self.config.max_chars, ..SplitOptions::default() };
        let pieces = split(text, &options);
        if pieces.is_empty() {
            return Err(Error::input("there is no text to speak; type at least one word"));
        }
        Ok(pieces)
    }

    pub(crate) fn encode_sentences(&self, sentences: &[Sentence], settings: &SpeakSettings) -> Result<Vec<Vec<u32>>> {
        let language = match settings.language.as_deref() {
            Some(code) => Some(code.parse::<Language>()?),
            None if self.variant.spec().multilingual => {
                return Err(Error::input("this model speaks 23 languages; say which, for example `--language en`"));
            }
            None => None,
        };
        sentences.iter().map(|s| self.tokenizer.encode(&s.text, language)).collect()
    }

    pub(crate) fn decode_options(&self, request: &SpeakRequest) -> DecodeOptions {
        let s = &request.settings;
        let guided = self.variant == Variant::MultilingualV2 && s.alignment_guard;
        DecodeOptions {
            sampling: SamplingOptions {
                temperature: s.temperature,
                top_k: s.top_k,
                top_p: s.top_p,
                min_p: s.min_p,
                repetition_penalty: s.repetition_penalty,
                cfg_weight: s.cfg_weight,
            },
            max_tokens: s.max_tokens,
            sentence: 0,
            alignment_heads: if guided { ALIGNED_HEADS.to_vec() } else { Vec::new() },
            force_tokens: request.replay.tokens.clone(),
            record_logits: request.trace.is_on(),
        }
    }
}
