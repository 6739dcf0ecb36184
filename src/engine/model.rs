//! A loaded model: all networks of a variant, and what they need from a model folder.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use crossbeam_channel::{RecvTimeoutError, bounded};

use crate::config::ModelConfig;
use crate::device::{Lanes, describe_cpu, open_device, put_decoder_on_card, put_on_card};
use crate::error::{Error, Result};
use crate::meter::{self, CardLimits, CardWorks, Limits};
use crate::model_files::ModelFiles;
use crate::nn::LayerErrors;
use crate::noise::SeededNoise;
use crate::protocol::{CancelToken, DeviceKind, LoadRequest, ModelInfo, ModelSource, SpeakSettings};
use crate::s3_tokenizer::S3Tokenizer;
use crate::s3gen::campplus::CamPPlus;
use crate::s3gen::hift::{Hift, HiftState};
use crate::s3gen::{FlowOptions, FlowRun, S3Gen, S3GenReference, S3GenState, Solver, StreamOptions};
use crate::synthesis::FIRST_CHUNK_TOKENS;
use crate::t3::{T3, T3Conditioning, T3State};
use crate::text::{Language, TextTokenizer};
use crate::variant::Variant;
use crate::voice::Voice;
use crate::voice_encoder::VoiceEncoder;
use crate::watermark::Watermarker;
use crate::weights::Weights;

/// The voice that comes with a model.
const BUILTIN_VOICE: &str = "conds.pt";

/// Seconds of a clip that S3Gen hears.
pub(crate) const S3GEN_REFERENCE_SECS: usize = 10;

/// What a streamed utterance begins with; the same for every one in one voice.
struct Primed {
    voice: Arc<Voice>,
    options: FlowOptions,
    /// The beginning of the prompt's noise, which tells recordings apart.
    noise: Vec<f32>,
    state: S3GenState,
}

/// Everything that speaks. Weights only; shared between threads.
pub struct Model {
    pub(crate) variant: Variant,
    pub(crate) config: ModelConfig,
    pub(crate) device: Device,
    pub(crate) lanes: Lanes,
    pub(crate) tokenizer: TextTokenizer,
    pub(crate) t3: T3,
    pub(crate) s3gen: S3Gen,
    pub(crate) hift: Hift,
    pub(crate) voice_encoder: VoiceEncoder,
    pub(crate) s3_tokenizer: S3Tokenizer,
    pub(crate) camp_plus: CamPPlus,
    pub(crate) watermarker: Arc<Watermarker>,
    /// T3's caches of the last job, kept so that the same voice need not be read again.
    idle_state: Mutex<Option<T3State>>,
    /// S3Gen after the prompt of the voice that was streamed last.
    primed: Mutex<Option<Primed>>,
    info: ModelInfo,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("title", &self.info.title).finish_non_exhaustive()
    }
}

impl Model {
    /// Loads a model; `progress` hears the fraction done and the part being loaded.
    ///
    /// # Errors
    /// If files are missing or do not fit, or the device or precision is not available.
    pub fn load(request: &LoadRequest, progress: &mut dyn FnMut(f32, &'static str)) -> Result<Self> {
        Self::load_measuring(request, None, progress)
    }

    /// [`Self::load`]; with `errors` the model computes in f32 and its layers tell what the precision would cost them.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_measuring(
        request: &LoadRequest,
        errors: Option<&Arc<LayerErrors>>,
        progress: &mut dyn FnMut(f32, &'static str),
    ) -> Result<Self> {
        let started = Instant::now();
        let device = open_device(request.device)?;
        let plan = request.plan.unwrap_or_else(|| request.precision.plan());
        let files = ModelFiles::of(&request.source)?;
        let variant = files.choose(request.variant)?;
        let spec = variant.spec();
        let config = ModelConfig::load(&files, variant)?;

        progress(0.0, "text");
        let kind = variant.tokenizer_kind();
        let tokenizer = match &files {
            ModelFiles::Folder(folder) => TextTokenizer::load(folder, kind)?,
            ModelFiles::Embedded => {
                let bytes = files.read("tokenizer.json")?.unwrap_or_default();
                TextTokenizer::from_json(&files.path("tokenizer.json"), &bytes, kind, config.expand_text)?
            }
        };
        progress(0.02, "voice encoder");
        let w = files.weights(spec.voice_encoder_files, &device)?;
        let voice_encoder = VoiceEncoder::load(&w, &config.voice_encoder)?;
        w.finish()?;
        let cache = request.cache.as_deref().filter(|_| errors.is_none());
        let usage = format!("{:?} {config:?}", plan.t3);
        let w = files.weights(&[spec.t3_file], &device)?.with_cache(cache, &usage);
        let w = w.at(plan.t3).measuring(errors);
        let mut t3 = watched(&w, |share| progress(0.05 + 0.6 * share, "T3"), || T3::load(&w, &config.t3))?;
        if errors.is_none() {
            t3 = t3.with_cache(plan.t3_cache);
        }
        w.finish()?;
        let (mut says, card) = match request.device {
            DeviceKind::Cuda => put_on_card(&mut t3, &w, plan.t3)?,
            _ => (String::new(), None),
        };
        let model_hash = w.fingerprint()?;
        w.keep_packed()?;
        let usage = format!("{:?} {:?} {config:?}", plan.flow, plan.encoders);
        let w = files.weights(spec.s3gen_files, &device)?.with_cache(cache, &usage);
        let networks = || {
            let encoder = |name: &str| w.pp(name).at(plan.encoders).measuring(errors);
            Ok((
                S3Gen::load(&w.at(plan.flow).measuring(errors), &config.flow)?,
                Hift::load(&w.pp("mel2wav"), &config.hift)?,
                S3Tokenizer::load(&encoder("tokenizer"), &config.s3_tokenizer)?,
                CamPPlus::load(&encoder("speaker_encoder"), &config.camp_plus)?,
            ))
        };
        let (mut s3gen, mut hift, s3_tokenizer, camp_plus) =
            watched(&w, |share| progress(0.65 + 0.3 * share, "S3Gen"), networks)?;
        if let Some(card) = &card {
            says += &put_decoder_on_card((&mut s3gen, &mut hift), &w, &config.hift, card, plan.flow)?;
        }
        if !says.is_empty() {
            says += "; ";
        }
        w.finish()?;
        w.keep_packed()?;
        progress(0.95, "watermark");
        let watermarker = Arc::new(Watermarker::embedded()?);
        let builtin_voice = match &files {
            ModelFiles::Folder(folder) if files.contains(BUILTIN_VOICE) => {
                let mut voice = Voice::load(&folder.join(BUILTIN_VOICE))?;
                voice.name = "Built-in".to_owned();
                Some(Arc::new(voice))
            }
            _ => None,
        };
        let lanes = Lanes::new(request.threads)?;
        let embedded = request.source == ModelSource::Embedded;
        let info = ModelInfo {
            variant,
            title: if embedded { "Myna small".to_owned() } else { spec.title.to_owned() },
            embedded,
            precision: request.precision,
            device: says + &describe_cpu(lanes.threads()),
            threads: lanes.threads(),
            languages: if spec.multilingual {
                Language::all().map(|l| l.code().to_owned()).collect()
            } else {
                Vec::new()
            },
            tags: tokenizer.tags(),
            defaults: default_settings(&config),
            builtin_voice,
            reference_secs: (config.t3.prompt_tokens as f32 / 25.0, S3GEN_REFERENCE_SECS as f32),
            model_hash,
            load_ms: started.elapsed().as_secs_f64() * 1e3,
            disk_bytes: [spec.voice_encoder_files, &[spec.t3_file], spec.s3gen_files]
                .map(|f| files.bytes(f))
                .iter()
                .sum(),
        };
        progress(1.0, "ready");
        Ok(Self {
            variant,
            config,
            device,
            lanes,
            tokenizer,
            t3,
            s3gen,
            hift,
            voice_encoder,
            s3_tokenizer,
            camp_plus,
            watermarker,
            idle_state: Mutex::new(None),
            primed: Mutex::new(None),
            info,
        })
    }

    /// What is loaded.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// What the machine can do with the threads of this model.
    pub fn limits(&self) -> Limits {
        self.lanes.all.install(meter::limits)
    }

    /// What a graphics card was given to do since the model was loaded; nothing where none is used.
    pub fn card_works(&self) -> Option<CardWorks> {
        let (prefill, decode) = self.t3.card_work()?;
        let flow = self.s3gen.card_work().unwrap_or_default();
        Some(CardWorks { prefill, decode, flow, vocoder: self.hift.card_work().unwrap_or_default() })
    }

    /// What the card can do; nothing where none is used.
    ///
    /// # Errors
    /// If the card lacks memory or fails.
    pub fn card_limits(&self) -> Result<Option<CardLimits>> {
        let Some(limits) = self.t3.card_limits()? else { return Ok(None) };
        Ok(Some(CardLimits { step_replay_ms: self.s3gen.replay_ms()?, ..limits }))
    }

    /// The flow's options for `steps` steps.
    pub(crate) fn flow_options(&self, steps: usize) -> FlowOptions {
        let defaults = self.s3gen.default_options();
        FlowOptions {
            solver: defaults.solver.with_steps(steps),
            noise_scale: self.config.noise_scale,
            stream: StreamOptions::default(),
        }
    }

    /// The solver this checkpoint was made for.
    pub fn solver(&self) -> Solver {
        self.flow_options(self.config.flow_steps).solver
    }

    /// T3's side of a voice, after checking that it was made for networks of this size.
    pub(crate) fn conditioning(&self, voice: &Voice, exaggeration: f32) -> Result<T3Conditioning> {
        let (found, expected) = (voice.t3.speaker_emb.len(), self.config.voice_encoder.embed);
        if found != expected {
            return Err(Error::input(format!(
                "the voice \"{}\" was made for another model (an embedding of {found} values, this one needs {expected}); prepare it again from its clip",
                voice.name
            )));
        }
        let most = self.config.t3.prompt_tokens;
        let prompt = &voice.t3.prompt_tokens;
        Ok(T3Conditioning {
            speaker_emb: voice.t3.speaker_emb.clone(),
            prompt_tokens: prompt[..prompt.len().min(most)].to_vec(),
            prompt_emb: None,
            exaggeration,
        })
    }

    /// S3Gen's side of a voice.
    pub(crate) fn reference(&self, voice: &Voice) -> Result<S3GenReference> {
        let gen_ = &voice.s3gen;
        let frames = gen_.prompt_feat.len() / 80;
        Ok(S3GenReference {
            prompt_token: gen_.prompt_token.clone(),
            prompt_feat: Tensor::from_slice(&gen_.prompt_feat, (1, frames, 80), &self.device)?,
            x_vector: Tensor::from_slice(&gen_.x_vector, (1, gen_.x_vector.len()), &self.device)?,
        })
    }

    /// Works through a voice's prompt, which the first words of a job would otherwise wait for.
    ///
    /// # Errors
    /// If the voice or the number of steps does not fit the model, or the run is cancelled.
    pub fn warm(&self, voice: &Arc<Voice>, steps: usize, cancel: &CancelToken) -> Result<()> {
        // A prompt's noise is the same for every seed.
        let noise = SeededNoise::new(0);
        let work = || {
            let cancelled = || cancel.is_cancelled();
            let run = FlowRun { noise: &noise, sentence: 0, cancelled: &cancelled };
            let mut state = self.primed(voice, &self.flow_options(steps), &run)?;
            if self.s3gen.card_work().is_some() {
                // A card keeps nothing of a prompt, but it records what a first chunk has it do.
                let chunk = self.s3gen.decode(&mut state, &[0; FIRST_CHUNK_TOKENS], false, &run)?;
                let ahead = chunk.lookahead.as_ref();
                self.hift.decode(&mut HiftState::new(0), &noise, &chunk.frames, ahead, false)?;
            }
            Ok(())
        };
        self.lanes.all.install(work)
    }

    /// S3Gen with the voice's prompt worked through, kept for the next job in the same voice.
    pub(crate) fn primed(&self, voice: &Arc<Voice>, options: &FlowOptions, run: &FlowRun<'_>) -> Result<S3GenState> {
        let noise = run.noise.prompt_flow(0, 1);
        let mut kept = self.primed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(primed) = kept.as_ref()
            && primed.voice == *voice
            && primed.options == *options
            && primed.noise == noise
        {
            return Ok(primed.state.clone());
        }
        *kept = None;
        let mut state = self.s3gen.start(&self.reference(voice)?, options)?;
        self.s3gen.prime(&mut state, run)?;
        *kept = Some(Primed { voice: voice.clone(), options: *options, noise, state: state.clone() });
        Ok(state)
    }

    /// T3's caches for at least `capacity` positions: those of the last job if they will do, else new ones.
    pub(crate) fn take_t3_state(&self, guided: bool, capacity: usize) -> Result<T3State> {
        let kept = self.idle_state.lock().unwrap_or_else(PoisonError::into_inner).take();
        match kept {
            Some(state) if state.is_guided() == guided && state.capacity() >= capacity => Ok(state),
            _ => self.t3.new_state(guided, capacity),
        }
    }

    /// Gives T3's caches back for the next job, with nothing but the voice in them.
    pub(crate) fn return_t3_state(&self, mut state: T3State) {
        state.release();
        *self.idle_state.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
    }
}

/// How often progress is told while a file is being read.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// Loads networks out of `w` and tells meanwhile which part of it has been read.
fn watched<T: Send>(w: &Weights, mut tell: impl FnMut(f32), load: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    tell(0.0);
    let (done, end) = bounded::<()>(0);
    std::thread::scope(|scope| {
        let loading = scope.spawn(move || {
            let loaded = load();
            drop(done);
            loaded
        });
        while end.recv_timeout(TELL_EVERY) == Err(RecvTimeoutError::Timeout) {
            tell(w.asked_for());
        }
        loading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn default_settings(config: &ModelConfig) -> SpeakSettings {
    SpeakSettings {
        temperature: config.sampling.temperature,
        cfg_weight: config.sampling.cfg_weight,
        top_p: config.sampling.top_p,
        min_p: config.sampling.min_p,
        top_k: config.sampling.top_k,
        repetition_penalty: config.sampling.repetition_penalty,
        steps: config.flow_steps,
        ..SpeakSettings::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::dsp::Pcm;
    use crate::protocol::{Delivery, Precision};
    use crate::replay::Replay;
    use crate::synthesis::{SpeakRequest, Synthesis};
    use crate::trace::Trace;

    fn load(precision: Precision, cache: Option<PathBuf>) -> Arc<Model> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/embedded");
        let source = ModelSource::Folder(folder);
        let request =
            LoadRequest { source, variant: None, precision, plan: None, device: DeviceKind::Cpu, threads: None, cache };
        Arc::new(Model::load(&request, &mut |_, _| ()).unwrap())
    }

    /// A voice and what it says: every network has a part in it.
    fn say(model: &Arc<Model>) -> (Voice, Vec<f32>) {
        let hum = |i: usize| (i as f32 * 0.03).sin() * (0.2 + 0.1 * (i as f32 * 0.0003).sin());
        let clip = Pcm { samples: (0..72_000).map(hum).collect(), sample_rate_hz: 24_000 };
        let voice = model.prepare_voice(&clip, "hum", &CancelToken::default(), &Trace::off()).unwrap();
        let request = SpeakRequest {
            text: "Once.".to_owned(),
            voice: Arc::new(voice.clone()),
            settings: SpeakSettings { max_tokens: 12, ..model.info().defaults.clone() },
            delivery: Delivery::OneShot,
            cancel: CancelToken::default(),
            noise: Arc::new(SeededNoise::new(4)),
            trace: Arc::new(Trace::off()),
            replay: Replay { tokens: (0..12).map(|i| i * 500).collect(), mel: None },
        };
        let mut synthesis = Synthesis::start(model, request).unwrap();
        let chunks = std::iter::from_fn(|| synthesis.next_chunk(&mut |_| ()).unwrap());
        (voice, chunks.flat_map(|chunk| chunk.samples).collect())
    }

    #[test]
    fn a_model_out_of_the_cache_says_the_same() {
        let cache = tempfile::tempdir().unwrap();
        for (precision, packs) in [(Precision::Int8, 2), (Precision::F32, 4)] {
            let plain = load(precision, None);
            let expected = say(&plain);
            for turn in ["first", "second"] {
                let model = load(precision, Some(cache.path().to_owned()));
                assert!(say(&model) == expected, "{precision:?}, {turn} load");
                assert_eq!(model.info().model_hash, plain.info().model_hash);
                assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), packs);
            }
        }
    }
}
