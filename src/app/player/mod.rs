//! Plays what the engine makes while it is being made: chunks to take to ring to sound card, on a thread of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, never, select, unbounded};
use myna_engine::protocol::{AudioChunk, SAMPLE_RATE_HZ};

mod callback;
mod feeder;
mod output;
mod pace;
mod resample;
mod take;

pub use callback::{Callback, FADE_SECS, Fault, PairFrame, Shared};
pub use output::{DeviceName, ListDevices, Opened, Output, Stream, SystemOutput};
pub use resample::StreamResampler;
pub use take::{Mark, PEAK_SAMPLES, Peak, Take, gather, peaks_of};

pub(crate) use output::{name_of, quietly};

/// Called from the player's thread when the window should look again.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// What the player is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PlayState {
    /// There is nothing to play.
    #[default]
    Empty,
    /// It will play as soon as enough sound lies ahead.
    Buffering,
    /// It plays.
    Playing,
    /// It holds.
    Paused,
    /// The take has been heard to its end.
    Ended,
}

/// What is known of the sound device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DeviceState {
    /// Not opened yet.
    #[default]
    Closed,
    /// Open.
    Ready {
        /// Its name.
        name: String,
        /// Its rate.
        rate_hz: u32,
    },
    /// There is none.
    Missing {
        /// Why not.
        why: String,
    },
}

/// What the window shows of the player.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PlayerStatus {
    /// What it is doing.
    pub state: PlayState,
    /// Where the listener is.
    pub position_secs: f32,
    /// Sound made and not yet heard.
    pub buffer_secs: f32,
    /// Times that sound was missing in this take.
    pub underruns: u32,
    /// From the key press to the first sample handed to the device.
    pub first_audio: Option<Duration>,
    /// The device.
    pub device: DeviceState,
    /// Devices to choose from, once listed.
    pub devices: Vec<DeviceName>,
}

/// What the feeder can be told.
#[derive(Debug)]
enum Command {
    Open,
    Begin { take: Arc<Take>, audio: Receiver<AudioChunk>, pressed: Option<Instant>, expected_secs: f32 },
    Load { take: Arc<Take>, twin: Option<Arc<Take>>, play: bool },
    Second(bool),
    Play,
    Pause,
    Stop,
    Seek(usize),
    Clear,
    Volume(f32),
    Device(Option<String>),
    Devices(Vec<DeviceName>),
    Shutdown,
}

/// A handle on the feeder's thread. Every call returns at once.
pub struct Player {
    commands: Sender<Command>,
    status: Arc<Mutex<PlayerStatus>>,
    lister: ListDevices,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Player {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Player").field("status", &self.status).finish_non_exhaustive()
    }
}

impl Player {
    /// Plays to `output`, at first on `device` or the system's own choice.
    ///
    /// # Errors
    /// If no thread can be had.
    pub fn new(output: Box<dyn Output>, device: Option<String>, volume: f32, wake: Wake) -> std::io::Result<Self> {
        let (commands, inbox) = unbounded();
        let lister = output.lister();
        let status = Arc::new(Mutex::new(PlayerStatus::default()));
        let shown = Arc::clone(&status);
        let thread = std::thread::Builder::new()
            .name("feeder".to_owned())
            .spawn(move || run(feeder::Feeder::new(output, device, volume), &inbox, &shown, &wake))?;
        let player = Self { commands, status, lister, thread: Some(thread) };
        player.send(Command::Open);
        Ok(player)
    }

    /// Plays a job as its chunks arrive. `pressed` is when somebody asked for it, `expected_secs` its probable length.
    pub fn begin(&self, take: Arc<Take>, audio: Receiver<AudioChunk>, pressed: Option<Instant>, expected_secs: f32) {
        self.send(Command::Begin { take, audio, pressed, expected_secs });
    }

    /// Takes up a finished take.
    pub fn load(&self, take: Arc<Take>, play: bool) {
        self.send(Command::Load { take, twin: None, play });
    }

    /// Takes up two finished takes of the same length, of which one is heard: see [`Self::hear_second`].
    pub fn load_pair(&self, [take, twin]: [Arc<Take>; 2], play: bool) {
        self.send(Command::Load { take, twin: Some(twin), play });
    }

    /// Lets the second take of a pair be heard, or the first, from where the listener is.
    pub fn hear_second(&self, second: bool) {
        self.send(Command::Second(second));
    }

    /// Plays on, or from the start after the end.
    pub fn play(&self) {
        self.send(Command::Play);
    }

    /// Holds.
    pub fn pause(&self) {
        self.send(Command::Pause);
    }

    /// Holds, at the start.
    pub fn stop(&self) {
        self.send(Command::Stop);
    }

    /// Goes elsewhere.
    pub fn seek(&self, secs: f32) {
        self.send(Command::Seek((secs.max(0.0) * SAMPLE_RATE_HZ as f32) as usize));
    }

    /// Lets go of the take.
    pub fn clear(&self) {
        self.send(Command::Clear);
    }

    /// Loudness, 1 as it is.
    pub fn set_volume(&self, volume: f32) {
        self.send(Command::Volume(volume.clamp(0.0, 1.0)));
    }

    /// Another device, or the system's own choice.
    pub fn set_device(&self, id: Option<String>) {
        self.send(Command::Device(id));
    }

    /// Looks for devices; they appear in the status. The feeder does not wait for a system that is slow to answer.
    pub fn list_devices(&self) {
        let (lister, commands) = (Arc::clone(&self.lister), self.commands.clone());
        let found = std::thread::Builder::new().name("devices".to_owned()).spawn(move || {
            let _ = commands.send(Command::Devices(lister()));
        });
        if let Err(error) = found {
            tracing::error!(%error, "no thread to look for sound devices");
        }
    }

    /// How things stand, at most ten milliseconds old.
    pub fn status(&self) -> PlayerStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn send(&self, command: Command) {
        // A feeder that is gone has left its last status; there is nothing else to do about it.
        let _ = self.commands.send(command);
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.send(Command::Shutdown);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(mut feeder: feeder::Feeder, inbox: &Receiver<Command>, shown: &Mutex<PlayerStatus>, wake: &Wake) {
    loop {
        let audio = feeder.audio().unwrap_or_else(never);
        let timeout = feeder.patience().map_or_else(never, crossbeam_channel::after);
        let mut told = None;
        select! {
            recv(inbox) -> command => told = Some(command.unwrap_or(Command::Shutdown)),
            recv(audio) -> chunk => feeder.arrived(chunk.ok(), Instant::now()),
            recv(timeout) -> _ => {}
        }
        if told.is_some_and(|command| !feeder.command(command, Instant::now())) {
            return;
        }
        feeder.tick(Instant::now());
        let status = feeder.status();
        let mut before = shown.lock().unwrap_or_else(PoisonError::into_inner);
        let moved = before.state != status.state
            || before.device != status.device
            || before.devices != status.devices
            || before.first_audio != status.first_audio
            || before.underruns != status.underruns;
        *before = status;
        drop(before);
        if moved {
            wake();
        }
    }
}

#[cfg(test)]
mod tests;
