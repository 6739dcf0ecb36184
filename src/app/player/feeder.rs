//! Between the engine and the sound card: keeps every chunk in the take, resamples, and keeps the ring topped up.
//!
//! The feeder is a plain state machine with a clock handed in; [`super::Player`] runs it on a thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};
use myna_engine::protocol::{AudioChunk, SAMPLE_RATE_HZ};
use rtrb::{Producer, RingBuffer};

use super::callback::{Callback, Fault, PairFrame, Shared};
use super::output::{Opened, Output};
use super::pace::Pace;
use super::resample::StreamResampler;
use super::take::Take;
use super::{Command, DeviceState, PlayState, PlayerStatus};

/// Sound that the ring holds.
const RING_SECS: f32 = 0.3;
/// Samples read from the take at a time.
const READ_SAMPLES: usize = 960;
/// How often an absent device is looked for again while something wants to be heard.
const RETRY: Duration = Duration::from_secs(2);
/// A device that asks for nothing for so long is gone.
const SILENT_DEVICE: Duration = Duration::from_millis(1500);
/// A device with nothing to play rests after so long.
const REST: Duration = Duration::from_secs(20);

/// An open device and its end of the ring.
struct Line {
    opened: Opened,
    shared: Arc<Shared>,
    ring: Producer<PairFrame>,
    /// One for each side of a pair; the second waits where there is no pair.
    resamplers: [StreamResampler; 2],
    pushed: u64,
    /// Frame and sample at which the present stretch of playback began.
    base_frame: u64,
    base_sample: usize,
    flushed: bool,
    underruns_seen: u32,
    callbacks_seen: (u64, Instant),
    running: bool,
}

/// What is playing now.
struct Track {
    take: Arc<Take>,
    /// The second side of a pair, as long as the first.
    twin: Option<Arc<Take>>,
    audio: Option<Receiver<AudioChunk>>,
    /// Next sample of the take that goes to the ring.
    cursor: usize,
    pressed: Option<Instant>,
    first_audio: Option<Duration>,
    underruns: u32,
    pace: Pace,
}

/// The state machine.
pub(super) struct Feeder {
    output: Box<dyn Output>,
    device: Option<String>,
    volume: f32,
    /// Whether the second side of a pair is heard.
    second: bool,
    line: Option<Line>,
    trouble: Option<String>,
    retry_at: Option<Instant>,
    track: Option<Track>,
    state: PlayState,
    idle_since: Option<Instant>,
    last_rtf: Option<f32>,
    devices: Vec<super::DeviceName>,
    buffer: Vec<f32>,
    staged: [Vec<f32>; 2],
    frames: Vec<PairFrame>,
}

impl Feeder {
    pub(super) fn new(output: Box<dyn Output>, device: Option<String>, volume: f32) -> Self {
        Self {
            output,
            device,
            volume,
            second: false,
            line: None,
            trouble: None,
            retry_at: None,
            track: None,
            state: PlayState::Empty,
            idle_since: None,
            last_rtf: None,
            devices: Vec::new(),
            buffer: vec![0.0; READ_SAMPLES],
            staged: Default::default(),
            frames: Vec::new(),
        }
    }

    /// Where chunks come from, while more are expected.
    pub(super) fn audio(&self) -> Option<Receiver<AudioChunk>> {
        self.track.as_ref().and_then(|track| track.audio.clone())
    }

    /// How long the feeder may sleep.
    pub(super) fn patience(&self) -> Option<Duration> {
        match self.state {
            PlayState::Playing | PlayState::Buffering => Some(Duration::from_millis(10)),
            _ => self.idle_since.map(|_| REST),
        }
    }

    /// Does what it is told; false to end.
    pub(super) fn command(&mut self, command: Command, now: Instant) -> bool {
        match command {
            Command::Open => self.open_line(now),
            Command::Begin { take, audio, pressed, expected_secs } => {
                let pace = Pace::new(now, self.last_rtf, expected_secs);
                self.set_track(take, None, Some(audio), pressed, pace, now);
            }
            Command::Load { take, twin, play } => {
                self.set_track(take, twin, None, None, Pace::new(now, None, 0.0), now);
                if !play {
                    self.state = PlayState::Paused;
                    self.gate(false);
                }
            }
            Command::Second(second) => {
                self.second = second;
                if let Some(line) = &self.line {
                    line.shared.set_second(second);
                }
            }
            Command::Play => self.play(now),
            Command::Pause => self.pause(),
            Command::Stop => {
                self.seek(0);
                self.pause();
            }
            Command::Seek(sample) => self.seek(sample),
            Command::Clear => {
                self.track = None;
                self.state = PlayState::Empty;
                self.silence();
            }
            Command::Volume(volume) => {
                self.volume = volume;
                if let Some(line) = &self.line {
                    line.shared.set_volume(volume);
                }
            }
            Command::Device(id) => {
                self.device = id;
                self.reopen(now);
            }
            Command::Devices(devices) => self.devices = devices,
            Command::Shutdown => return false,
        }
        true
    }

    /// Moves everything on. Call often while playing, and after chunks arrived.
    pub(super) fn tick(&mut self, now: Instant) {
        self.drain(now);
        self.watch_device(now);
        if self.trouble.is_some() && self.retry_at.is_some_and(|at| now >= at) && self.wants_sound() {
            self.open_line(now);
        }
        self.note_underruns();
        if self.state == PlayState::Buffering
            && self.track.as_ref().is_some_and(|t| t.pace.may_start(ahead(t), &t.take, now))
        {
            self.state = PlayState::Playing;
        }
        if self.state == PlayState::Playing {
            self.fill();
            self.gate(true);
            self.finish_if_heard();
        }
        self.rest(now);
    }

    /// What the window shows.
    pub(super) fn status(&self) -> PlayerStatus {
        let position = self.position();
        let track = self.track.as_ref();
        PlayerStatus {
            state: self.state,
            position_secs: position as f32 / SAMPLE_RATE_HZ as f32,
            buffer_secs: track.map_or(0.0, |t| t.take.len().saturating_sub(position) as f32 / SAMPLE_RATE_HZ as f32),
            underruns: track.map_or(0, |t| t.underruns),
            first_audio: track.and_then(|t| t.first_audio),
            device: match (&self.line, &self.trouble) {
                (Some(line), _) => DeviceState::Ready { name: line.opened.name.clone(), rate_hz: line.opened.rate_hz },
                (None, Some(why)) => DeviceState::Missing { why: why.clone() },
                (None, None) => DeviceState::Closed,
            },
            devices: self.devices.clone(),
        }
    }

    fn wants_sound(&self) -> bool {
        matches!(self.state, PlayState::Playing | PlayState::Buffering)
    }

    fn set_track(
        &mut self,
        take: Arc<Take>,
        twin: Option<Arc<Take>>,
        audio: Option<Receiver<AudioChunk>>,
        pressed: Option<Instant>,
        pace: Pace,
        now: Instant,
    ) {
        self.track = Some(Track { take, twin, audio, cursor: 0, pressed, first_audio: None, underruns: 0, pace });
        self.state = PlayState::Buffering;
        self.idle_since = None;
        if self.line.is_none() {
            self.open_line(now);
        }
        self.restart_line(0);
        if let Some(line) = &mut self.line {
            // A device that rests takes a while to wake up; the engine takes as long for the first sound.
            line.run();
            if pressed.is_some() {
                line.shared.await_frame(line.base_frame);
            }
        }
    }

    /// Takes in what the engine sent; without a chunk, nothing follows. The engine is never kept waiting.
    pub(super) fn arrived(&mut self, chunk: Option<AudioChunk>, now: Instant) {
        let Some(track) = &mut self.track else { return };
        match chunk {
            Some(chunk) => {
                if let (Some(pressed), true) = (track.pressed, track.take.is_empty()) {
                    tracing::debug!(ms = (now - pressed).as_secs_f32() * 1e3, "first chunk");
                }
                track.take.push(&chunk);
                track.pace.chunk(chunk.samples.len(), now);
            }
            None => {
                track.take.complete();
                track.audio = None;
                self.last_rtf = track.pace.rtf().or(self.last_rtf);
            }
        }
    }

    fn drain(&mut self, now: Instant) {
        while let Some(audio) = self.track.as_ref().and_then(|track| track.audio.as_ref()) {
            match audio.try_recv() {
                Ok(chunk) => self.arrived(Some(chunk), now),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => self.arrived(None, now),
            }
        }
    }

    fn play(&mut self, now: Instant) {
        let Some(track) = &self.track else { return };
        let heard = self.position() >= track.take.len() && track.take.is_complete();
        let ended = self.state == PlayState::Ended || heard;
        if self.line.is_none() {
            self.open_line(now);
        }
        if ended {
            self.restart_line(0);
        }
        self.idle_since = None;
        self.state = PlayState::Buffering;
    }

    fn pause(&mut self) {
        if self.track.is_some() && self.state != PlayState::Ended {
            self.state = PlayState::Paused;
        }
        self.gate(false);
    }

    fn seek(&mut self, sample: usize) {
        let Some(track) = &self.track else { return };
        let sample = sample.min(track.take.len());
        if self.state == PlayState::Ended {
            self.state = PlayState::Paused;
        }
        self.restart_line(sample);
        if self.state == PlayState::Playing {
            self.fill();
        }
    }

    fn silence(&mut self) {
        self.gate(false);
        if let Some(line) = &mut self.line {
            line.shared.discard_to(line.pushed, false);
        }
    }

    fn gate(&mut self, open: bool) {
        if let Some(line) = &mut self.line {
            if open {
                line.run();
            }
            line.shared.set_gate(open);
        }
    }

    /// Throws away what is in the ring and goes on from `sample`.
    fn restart_line(&mut self, sample: usize) {
        if let Some(track) = &mut self.track {
            track.cursor = sample;
        }
        if let Some(line) = &mut self.line {
            line.restart(sample);
        }
    }

    /// Where the listener is, in samples of the take.
    fn position(&self) -> usize {
        let Some(track) = &self.track else { return 0 };
        let Some(line) = &self.line else { return track.cursor.min(track.take.len()) };
        let frames = line.shared.consumed().saturating_sub(line.base_frame);
        let samples = frames * u64::from(SAMPLE_RATE_HZ) / u64::from(line.opened.rate_hz.max(1));
        (line.base_sample + samples as usize).min(track.take.len())
    }

    fn fill(&mut self) {
        let (Some(line), Some(track)) = (&mut self.line, &mut self.track) else { return };
        let [first, second] = &mut self.staged;
        while line.ring.slots() >= line.resamplers[0].most_out(READ_SAMPLES) {
            let n = track.take.read(track.cursor, &mut self.buffer);
            first.clear();
            second.clear();
            if n > 0 {
                line.resamplers[0].push(&self.buffer[..n], first);
                if let Some(twin) = &track.twin {
                    let found = twin.read(track.cursor, &mut self.buffer[..n]);
                    self.buffer[found..n].fill(0.0);
                    line.resamplers[1].push(&self.buffer[..n], second);
                }
                track.cursor += n;
            } else if track.take.is_complete() && track.cursor >= track.take.len() && !line.flushed {
                line.flushed = true;
                line.resamplers[0].finish(first);
                line.resamplers[1].finish(second);
            } else {
                return;
            }
            let other = if track.twin.is_some() { &*second } else { &*first };
            self.frames.clear();
            self.frames.extend(first.iter().zip(other).map(|(&a, &b)| [a, b]));
            if line.ring.push_entire_slice(&self.frames).is_ok() {
                line.pushed += self.frames.len() as u64;
            }
            if line.flushed {
                line.shared.set_end(line.pushed);
            }
        }
    }

    fn note_underruns(&mut self) {
        let (Some(line), Some(track)) = (&mut self.line, &mut self.track) else { return };
        if let (Some(heard), Some(pressed), None) = (line.shared.heard_at(), track.pressed, track.first_audio) {
            track.first_audio = Some(heard.saturating_duration_since(pressed));
        }
        let seen = line.shared.underruns();
        let new = seen - line.underruns_seen;
        line.underruns_seen = seen;
        if new > 0 && self.state == PlayState::Playing {
            track.underruns += new;
            track.pace.ran_dry();
            self.state = PlayState::Buffering;
        }
    }

    fn finish_if_heard(&mut self) {
        let Some(line) = &self.line else { return };
        if line.flushed && line.shared.consumed() >= line.pushed {
            self.state = PlayState::Ended;
            self.gate(false);
        }
    }

    fn rest(&mut self, now: Instant) {
        if self.wants_sound() || self.audio().is_some() {
            self.idle_since = None;
            return;
        }
        let Some(line) = &mut self.line else {
            self.idle_since = None;
            return;
        };
        match self.idle_since {
            None if line.running => self.idle_since = Some(now),
            Some(since) if now.duration_since(since) >= REST => {
                line.opened.stream.run(false);
                line.running = false;
                self.idle_since = None;
            }
            _ => {}
        }
    }

    fn open_line(&mut self, now: Instant) {
        let (position, was_open) = (self.position(), self.line.take().is_some());
        let shared = Arc::new(Shared::new(self.volume));
        shared.set_second(self.second);
        let mut ring = None;
        let mut make = |rate_hz: u32| {
            let (producer, consumer) = RingBuffer::new((rate_hz as f32 * RING_SECS) as usize);
            ring = Some(producer);
            Callback::new(consumer, Arc::clone(&shared), rate_hz)
        };
        let mut opened = self.output.open(self.device.as_deref(), &shared, &mut make);
        if opened.is_err() && self.device.is_some() {
            opened = self.output.open(None, &shared, &mut make);
        }
        let line = opened.and_then(|opened| {
            let resamplers = [StreamResampler::new(opened.rate_hz)?, StreamResampler::new(opened.rate_hz)?];
            let ring = ring.ok_or_else(|| anyhow::anyhow!("the sound device made no callback"))?;
            Ok(Line::new(opened, shared, ring, resamplers, now))
        });
        match line {
            Ok(line) => {
                self.line = Some(line);
                (self.trouble, self.retry_at) = (None, None);
                if self.track.is_some() {
                    self.restart_line(position);
                    if was_open && self.state == PlayState::Playing {
                        self.state = PlayState::Buffering;
                    }
                }
            }
            Err(error) => {
                self.trouble = Some(format!("{error:#}"));
                self.retry_at = Some(now + RETRY);
                if let Some(track) = &mut self.track {
                    track.cursor = position;
                }
            }
        }
    }

    fn reopen(&mut self, now: Instant) {
        self.open_line(now);
        if self.line.is_some() && self.state == PlayState::Playing {
            self.state = PlayState::Buffering;
        }
    }

    /// Opens the device again when it said that it is gone, or stopped asking.
    fn watch_device(&mut self, now: Instant) {
        let Some(line) = &mut self.line else { return };
        let fault = line.shared.take_fault();
        let calls = line.shared.callbacks();
        if calls != line.callbacks_seen.0 || self.state != PlayState::Playing {
            line.callbacks_seen = (calls, now);
        }
        let silent = now.duration_since(line.callbacks_seen.1) >= SILENT_DEVICE;
        if fault == Fault::Lost || silent {
            tracing::warn!(silent, device = %line.opened.name, "the sound device is gone; opening another");
            self.reopen(now);
        }
    }
}

/// Samples made and not yet handed to the ring.
fn ahead(track: &Track) -> usize {
    track.take.len().saturating_sub(track.cursor)
}

impl Line {
    fn new(
        opened: Opened,
        shared: Arc<Shared>,
        ring: Producer<PairFrame>,
        resamplers: [StreamResampler; 2],
        now: Instant,
    ) -> Self {
        Self {
            opened,
            shared,
            ring,
            resamplers,
            pushed: 0,
            base_frame: 0,
            base_sample: 0,
            flushed: false,
            underruns_seen: 0,
            callbacks_seen: (0, now),
            running: true,
        }
    }

    /// Wakes the device up.
    fn run(&mut self) {
        if !self.running {
            self.opened.stream.run(true);
            self.running = true;
        }
    }

    fn restart(&mut self, sample: usize) {
        self.resamplers.iter_mut().for_each(StreamResampler::reset);
        self.shared.discard_to(self.pushed, sample > 0);
        self.base_frame = self.pushed;
        self.base_sample = sample;
        self.flushed = false;
    }
}
