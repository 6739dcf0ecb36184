//! The only file that sends commands to the engine and reads its events; whatever belongs to an older job is dropped.

use std::sync::Arc;

use crossbeam_channel::{Receiver, bounded};
use myna_engine::Engine;
use myna_engine::protocol::{
    AudioChunk, CancelToken, Command, Delivery, Event, JobId, LoadRequest, Pcm, PrepareJob, SpeakJob, SpeakSettings,
    WarmJob,
};
use myna_engine::voice::Voice;

/// Chunks on their way to the player; it takes them at once, so few are ever waiting.
const CHUNKS: usize = 64;

#[derive(Debug)]
struct Running {
    id: JobId,
    cancel: CancelToken,
}

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The model.
    Model,
    /// The voice that is being prepared.
    Voice,
    /// The text that is being spoken.
    Speech,
}

/// A handle on the engine.
#[derive(Debug)]
pub struct EngineLink {
    engine: Engine,
    loads: usize,
    prepare: Option<Running>,
    warm: Option<CancelToken>,
    speak: Option<Running>,
}

impl EngineLink {
    /// Hands every event to `deliver`, from a thread of its own.
    ///
    /// # Errors
    /// If no thread can be had.
    pub fn new(engine: Engine, deliver: impl Fn(Event) + Send + 'static) -> std::io::Result<Self> {
        let events = engine.events.clone();
        std::thread::Builder::new()
            .name("engine events".to_owned())
            .spawn(move || events.into_iter().for_each(deliver))?;
        Ok(Self { engine, loads: 0, prepare: None, warm: None, speak: None })
    }

    /// Loads a model. Jobs of the model before are stopped.
    ///
    /// # Errors
    /// If the engine is gone.
    pub fn load(&mut self, request: LoadRequest) -> Result<(), EngineGone> {
        self.cancel_speak();
        self.cancel_prepare();
        self.cancel_warm();
        self.send(Command::Load(request))?;
        self.loads += 1;
        Ok(())
    }

    /// Drops the model. Its jobs are stopped.
    ///
    /// # Errors
    /// If the engine is gone.
    pub fn unload(&mut self) -> Result<(), EngineGone> {
        self.cancel_speak();
        self.cancel_prepare();
        self.cancel_warm();
        self.send(Command::Unload)
    }

    /// Prepares a voice; one that is being prepared is given up.
    ///
    /// # Errors
    /// If the engine is gone.
    pub fn prepare(&mut self, clip: Pcm, name: String) -> Result<(), EngineGone> {
        self.cancel_prepare();
        self.cancel_warm();
        let (id, cancel) = (JobId::new(), CancelToken::default());
        self.send(Command::Prepare(PrepareJob { id, clip, name, cancel: cancel.clone() }))?;
        self.prepare = Some(Running { id, cancel });
        Ok(())
    }

    /// Has the engine work through a voice before there is something to say; one that it works through is given up. That
    /// the engine is gone is told by the next job.
    pub fn warm(&mut self, voice: Arc<Voice>, steps: usize) {
        self.cancel_warm();
        let cancel = CancelToken::default();
        self.warm = Some(cancel.clone());
        let _ = self.send(Command::Warm(WarmJob { voice, steps, cancel }));
    }

    fn cancel_warm(&mut self) {
        if let Some(cancel) = self.warm.take() {
            cancel.cancel();
        }
    }

    /// Speaks; what is being spoken is stopped. The sound comes out of the channel.
    ///
    /// # Errors
    /// If the engine is gone.
    pub fn speak(
        &mut self,
        text: String,
        voice: Arc<Voice>,
        settings: SpeakSettings,
    ) -> Result<Receiver<AudioChunk>, EngineGone> {
        self.cancel_speak();
        let (id, cancel) = (JobId::new(), CancelToken::default());
        let (audio, sound) = bounded(CHUNKS);
        let delivery = Delivery::Streamed;
        self.send(Command::Speak(SpeakJob { id, text, voice, settings, delivery, audio, cancel: cancel.clone() }))?;
        self.speak = Some(Running { id, cancel });
        Ok(sound)
    }

    /// Stops speaking; nothing about that job is heard of again.
    pub fn cancel_speak(&mut self) {
        if let Some(running) = self.speak.take() {
            running.cancel.cancel();
        }
    }

    /// Gives up preparing a voice; nothing about that job is heard of again.
    pub fn cancel_prepare(&mut self) {
        if let Some(running) = self.prepare.take() {
            running.cancel.cancel();
        }
    }

    /// Lets an event through if it is about the present model or a present job, and says which.
    pub fn accept(&mut self, event: Event) -> Option<(Subject, Event)> {
        let current = match &event {
            Event::LoadProgress { .. } => self.loads == 1,
            Event::Loaded(_) | Event::LoadFailed { .. } => {
                self.loads = self.loads.saturating_sub(1);
                self.loads == 0
            }
            Event::Unloaded => self.loads == 0,
            _ => return self.accept_job(event),
        };
        current.then_some((Subject::Model, event))
    }

    fn accept_job(&mut self, event: Event) -> Option<(Subject, Event)> {
        let job = event.job();
        let slots = [(Subject::Speech, &mut self.speak), (Subject::Voice, &mut self.prepare)];
        let (subject, slot) =
            slots.into_iter().find(|(_, slot)| slot.as_ref().is_some_and(|running| Some(running.id) == job))?;
        if event.is_terminal() {
            *slot = None;
        }
        Some((subject, event))
    }

    fn send(&self, command: Command) -> Result<(), EngineGone> {
        self.engine.commands.send(command).map_err(|_| EngineGone)
    }
}

impl Drop for EngineLink {
    fn drop(&mut self) {
        self.cancel_speak();
        self.cancel_prepare();
        self.cancel_warm();
        let _ = self.send(Command::Shutdown);
    }
}

/// The engine's thread has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineGone;

impl std::fmt::Display for EngineGone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("The engine has stopped. Please start Myna again.")
    }
}

impl std::error::Error for EngineGone {}
