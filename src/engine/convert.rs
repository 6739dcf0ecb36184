//! Voice conversion: the words of a recording in another voice. The recording's speech tokens stand in for T3's.

use std::sync::Arc;
use std::time::Instant;

use crate::error::Result;
use crate::model::Model;
use crate::noise::NoiseSource;
use crate::protocol::{CancelToken, Pcm, SAMPLE_RATE_HZ, StageTimes, Stats};
use crate::s3gen::FlowRun;
use crate::trace::Trace;
use crate::voice::Voice;

/// A recording to be said again.
#[derive(Debug)]
pub struct ConvertRequest {
    /// The recording, at its own rate.
    pub source: Pcm,
    /// The voice to say it in.
    pub voice: Arc<Voice>,
    /// Flow steps.
    pub steps: usize,
    /// Looked at in every flow step.
    pub cancel: CancelToken,
    /// Randomness.
    pub noise: Arc<dyn NoiseSource>,
    /// Where stages are recorded.
    pub trace: Arc<Trace>,
}

impl Model {
    /// Says a recording again in another voice: 24 kHz, watermarked.
    ///
    /// # Errors
    /// If the recording or the voice cannot be used, or the job is cancelled.
    pub fn convert(&self, request: &ConvertRequest) -> Result<(Vec<f32>, Stats)> {
        self.lanes.all.install(|| self.convert_here(request))
    }

    fn convert_here(&self, request: &ConvertRequest) -> Result<(Vec<f32>, Stats)> {
        let begun = Instant::now();
        let trace = &request.trace;
        request.source.check()?;
        let wav16 = request.source.at_rate(16_000)?;
        let mut stages = StageTimes::default();
        let tokens = self.s3_tokenizer.encode(&wav16, None)?;
        stages.voice = begun.elapsed().as_secs_f64() * 1e3;
        trace.ids("speech_tokens", &tokens)?;
        let reference = self.reference(&request.voice)?;
        let cancelled = || request.cancel.is_cancelled();
        let run = FlowRun { noise: &*request.noise, sentence: 0, cancelled: &cancelled };
        let started = Instant::now();
        let flow = self.s3gen.trace(&reference, &tokens, &self.flow_options(request.steps), &run)?;
        stages.flow = started.elapsed().as_secs_f64() * 1e3;
        let started = Instant::now();
        let sound = self.hift.forward(&flow.mel, &*request.noise, 0)?;
        stages.vocoder = started.elapsed().as_secs_f64() * 1e3;
        if trace.is_on() {
            trace.tensor("mu", &flow.mu.transpose(1, 2)?.contiguous()?)?;
            trace.tensor("mel", &flow.mel.transpose(1, 2)?.contiguous()?)?;
            trace.floats("f0", &sound.f0, (1, sound.f0.len()))?;
            trace.floats("source", &sound.source, (1, 1, sound.source.len()))?;
        }
        let wav = sound.faded();
        trace.floats("wav", &wav, (1, wav.len()))?;
        let started = Instant::now();
        let marked = self.watermarker.apply(&wav)?;
        stages.watermark = started.elapsed().as_secs_f64() * 1e3;
        trace.floats("watermarked", &marked, (1, marked.len()))?;
        let wall_ms = begun.elapsed().as_secs_f64() * 1e3;
        let audio_secs = marked.len() as f64 / f64::from(SAMPLE_RATE_HZ);
        let stats = Stats {
            audio_secs,
            rtf: if audio_secs > 0.0 { wall_ms / 1e3 / audio_secs } else { 0.0 },
            ttfa_ms: wall_ms,
            tokens: tokens.len(),
            stages,
            sentences_done: 1,
            sentences: 1,
            wall_ms,
            ..Stats::default()
        };
        Ok((marked, stats))
    }
}
