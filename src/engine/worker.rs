//! The engine's thread: receives commands, runs one job at a time, reports events.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, SendTimeoutError, Sender, unbounded};

use crate::convert::ConvertRequest;
use crate::error::{Error, Result};
use crate::kernels::memory::give_back as give_back_memory;
use crate::model::Model;
use crate::noise::SeededNoise;
use crate::protocol::{
    AudioChunk, CancelToken, Command, ConvertJob, Event, JobId, LoadRequest, PrepareJob, SpeakJob, Stats, WarmJob,
};
use crate::replay::Replay;
use crate::synthesis::{SpeakRequest, Synthesis};
use crate::trace::Trace;

/// How often a job that waits for its listener looks whether it was cancelled.
const PATIENCE: Duration = Duration::from_millis(50);

/// A handle on the engine: send commands, drain events. Dropping all handles ends it after its job.
#[derive(Debug, Clone)]
pub struct Engine {
    /// Where commands go.
    pub commands: Sender<Command>,
    /// Where events come from.
    pub events: Receiver<Event>,
}

impl Engine {
    /// Starts the engine; `wake` is called after each event.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn spawn(wake: impl Fn() + Send + 'static) -> Result<Self> {
        let (commands, mailbox) = unbounded();
        let (out, events) = unbounded();
        let worker = Worker { model: None, events: Reporter { events: out, wake: Box::new(wake) } };
        let thread = std::thread::Builder::new().name("myna-engine".to_owned()).spawn(move || worker.run(&mailbox));
        thread.map_err(|e| Error::internal(format!("cannot start the engine's thread: {e}")))?;
        Ok(Self { commands, events })
    }
}

struct Reporter {
    events: Sender<Event>,
    wake: Box<dyn Fn() + Send>,
}

impl Reporter {
    fn say(&self, event: Event) {
        // Nobody listens any more: the application is closing.
        let _ = self.events.send(event);
        (self.wake)();
    }
}

struct Worker {
    model: Option<Arc<Model>>,
    events: Reporter,
}

impl Worker {
    fn run(mut self, mailbox: &Receiver<Command>) {
        for command in mailbox {
            match command {
                Command::Load(request) => self.load(&request),
                Command::Prepare(job) => self.job(job.id, |worker| worker.prepare(&job)),
                Command::Warm(job) => self.warm(&job),
                Command::Speak(job) => self.job(job.id, |worker| worker.speak(&job)),
                Command::Convert(job) => self.job(job.id, |worker| worker.convert(&job)),
                Command::Unload => {
                    self.model = None;
                    give_back_memory();
                    self.events.say(Event::Unloaded);
                }
                Command::Shutdown => return,
            }
        }
    }

    fn load(&mut self, request: &LoadRequest) {
        // The old model goes first: two do not fit into memory.
        self.model = None;
        give_back_memory();
        let outcome = guarded(|| {
            Model::load(request, &mut |fraction, part| self.events.say(Event::LoadProgress { fraction, part }))
        });
        match outcome {
            Ok(model) => {
                self.events.say(Event::Loaded(Box::new(model.info().clone())));
                self.model = Some(Arc::new(model));
            }
            Err(error) => self.events.say(Event::LoadFailed { error: error.to_string() }),
        }
    }

    /// Runs a job to exactly one terminal event.
    fn job(&mut self, job: JobId, run: impl FnOnce(&Self) -> Result<Event>) {
        self.events.say(Event::Started { job });
        let outcome = guarded(|| run(self));
        let event = match outcome {
            Ok(event) => event,
            Err(Error::Cancelled) => Event::Cancelled { job },
            Err(error) => {
                if matches!(error, Error::Internal(_)) {
                    // Whatever broke may be in the model's state.
                    self.model = None;
                    self.events.say(Event::Unloaded);
                }
                Event::Failed { job, error: error.to_string(), bad_input: error.is_bad_input() }
            }
        };
        self.events.say(event);
    }

    fn model(&self) -> Result<&Arc<Model>> {
        self.model.as_ref().ok_or_else(|| Error::input("no model is loaded; choose one first"))
    }

    fn prepare(&self, job: &PrepareJob) -> Result<Event> {
        let started = Instant::now();
        let voice = self.model()?.prepare_voice(&job.clip, &job.name, &job.cancel, &Trace::off())?;
        let ms = started.elapsed().as_secs_f64() * 1e3;
        Ok(Event::VoiceReady { job: job.id, voice: Arc::new(voice), ms })
    }

    /// What goes wrong here goes wrong again when somebody waits for it, and is told then.
    fn warm(&self, job: &WarmJob) {
        let _ = guarded(|| self.model()?.warm(&job.voice, job.steps, &job.cancel));
    }

    fn speak(&self, job: &SpeakJob) -> Result<Event> {
        let request = SpeakRequest {
            text: job.text.clone(),
            voice: job.voice.clone(),
            settings: job.settings.clone(),
            delivery: job.delivery,
            cancel: job.cancel.clone(),
            noise: Arc::new(SeededNoise::new(job.settings.seed)),
            trace: Arc::new(Trace::off()),
            replay: Replay::default(),
        };
        let mut synthesis = Synthesis::start(self.model()?, request)?;
        let report = |stats: &Stats| self.events.say(Event::Progress { job: job.id, stats: *stats });
        while let Some(chunk) = synthesis.next_chunk(&mut |stats| report(stats))? {
            deliver(&job.audio, chunk, &job.cancel)?;
            report(&synthesis.stats());
        }
        Ok(Event::Finished { job: job.id, stats: synthesis.stats() })
    }

    fn convert(&self, job: &ConvertJob) -> Result<Event> {
        let request = ConvertRequest {
            source: job.source.clone(),
            voice: job.voice.clone(),
            steps: job.settings.steps,
            cancel: job.cancel.clone(),
            noise: Arc::new(SeededNoise::new(job.settings.seed)),
            trace: Arc::new(Trace::off()),
        };
        let (samples, stats) = self.model()?.convert(&request)?;
        deliver(&job.audio, AudioChunk { samples, sentence: 0, text_range: 0..0 }, &job.cancel)?;
        Ok(Event::Finished { job: job.id, stats })
    }
}

/// Hands sound over, waiting for room; a listener that is gone has cancelled.
fn deliver(audio: &Sender<AudioChunk>, mut chunk: AudioChunk, cancel: &CancelToken) -> Result<()> {
    loop {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        match audio.send_timeout(chunk, PATIENCE) {
            Ok(()) => return Ok(()),
            Err(SendTimeoutError::Timeout(back)) => chunk = back,
            Err(SendTimeoutError::Disconnected(_)) => return Err(Error::Cancelled),
        }
    }
}

/// Turns a panic into an error, so that a defect ends a job and not the application.
fn guarded<T>(run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(Error::internal(words_of(&*panic))))
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("the engine broke off ({}); the model was unloaded, load it again", words.unwrap_or("no reason given"))
}
