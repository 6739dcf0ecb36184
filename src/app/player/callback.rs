//! What runs on the sound card's thread: copies, scales, zeroes and bumps atomics, and nothing else.
//!
//! Wherever sound stops (underrun, pause, seek) its last value decays to zero over five milliseconds, and wherever it
//! resumes it fades in as long, so that no step is ever heard. A frame holds both sides of a pair that is compared (twice
//! the same of everything else); which one is heard is decided here, at the last moment, and changes within the same time.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rtrb::Consumer;

/// Both sides of a pair at one moment.
pub type PairFrame = [f32; 2];

/// No frame in particular.
const NEVER: u64 = u64::MAX;

/// Length of every fade, in seconds.
pub const FADE_SECS: f32 = 0.005;

/// What a device reported about itself; later ones are worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Fault {
    /// Nothing.
    None = 0,
    /// Something that may pass.
    Glitch = 1,
    /// The device is gone or must be opened again.
    Lost = 2,
}

/// What the feeder and the callback know of each other. All frames are counted from the opening of the device.
#[derive(Debug)]
pub struct Shared {
    opened: Instant,
    gate: AtomicBool,
    fade_in: AtomicBool,
    orders: AtomicU32,
    volume: AtomicU32,
    second: AtomicBool,
    consumed: AtomicU64,
    discard_to: AtomicU64,
    end_at: AtomicU64,
    underruns: AtomicU32,
    callbacks: AtomicU64,
    awaited: AtomicU64,
    heard_at_nanos: AtomicU64,
    fault: AtomicU8,
}

impl Shared {
    /// For a device about to be opened.
    pub fn new(volume: f32) -> Self {
        Self {
            opened: Instant::now(),
            gate: AtomicBool::new(false),
            fade_in: AtomicBool::new(false),
            orders: AtomicU32::new(0),
            volume: AtomicU32::new(volume.to_bits()),
            second: AtomicBool::new(false),
            consumed: AtomicU64::new(0),
            discard_to: AtomicU64::new(0),
            end_at: AtomicU64::new(NEVER),
            underruns: AtomicU32::new(0),
            callbacks: AtomicU64::new(0),
            awaited: AtomicU64::new(NEVER),
            heard_at_nanos: AtomicU64::new(0),
            fault: AtomicU8::new(0),
        }
    }

    /// Lets sound through, or holds it.
    pub fn set_gate(&self, open: bool) {
        self.gate.store(open, Ordering::Release);
    }

    /// Loudness, 1 as it is.
    pub fn set_volume(&self, volume: f32) {
        self.volume.store(volume.to_bits(), Ordering::Relaxed);
    }

    /// Lets the second side of a pair be heard, or the first.
    pub fn set_second(&self, second: bool) {
        self.second.store(second, Ordering::Relaxed);
    }

    /// Forgets all frames before `frame`; what follows them fades in or not. Call before pushing what follows.
    pub fn discard_to(&self, frame: u64, fade_in: bool) {
        self.end_at.store(NEVER, Ordering::Release);
        self.fade_in.store(fade_in, Ordering::Relaxed);
        self.discard_to.store(frame, Ordering::Relaxed);
        self.orders.fetch_add(1, Ordering::Release);
    }

    /// Says at which frame silence is meant.
    pub fn set_end(&self, frame: u64) {
        self.end_at.store(frame, Ordering::Release);
    }

    /// Frames taken so far.
    pub fn consumed(&self) -> u64 {
        self.consumed.load(Ordering::Acquire)
    }

    /// Times that sound was missing.
    pub fn underruns(&self) -> u32 {
        self.underruns.load(Ordering::Relaxed)
    }

    /// Times the device asked.
    pub fn callbacks(&self) -> u64 {
        self.callbacks.load(Ordering::Relaxed)
    }

    /// Asks when the next frame from `frame` on is handed out.
    pub fn await_frame(&self, frame: u64) {
        self.heard_at_nanos.store(0, Ordering::Relaxed);
        self.awaited.store(frame, Ordering::Release);
    }

    /// When the awaited frame was handed out, if it was.
    pub fn heard_at(&self) -> Option<Instant> {
        match self.heard_at_nanos.load(Ordering::Acquire) {
            0 => None,
            nanos => Some(self.opened + Duration::from_nanos(nanos)),
        }
    }

    /// Reports trouble, from any thread.
    pub fn report(&self, fault: Fault) {
        self.fault.fetch_max(fault as u8, Ordering::Relaxed);
    }

    /// The worst trouble since the last call.
    pub fn take_fault(&self) -> Fault {
        match self.fault.swap(0, Ordering::Relaxed) {
            0 => Fault::None,
            1 => Fault::Glitch,
            _ => Fault::Lost,
        }
    }
}

/// The sound card's side of the ring.
#[derive(Debug)]
pub struct Callback {
    ring: Consumer<PairFrame>,
    shared: std::sync::Arc<Shared>,
    volume: f32,
    orders_seen: u32,
    sounding: bool,
    fade: f32,
    fade_step: f32,
    /// Share of the second side.
    blend: f32,
    last: f32,
    tail: f32,
    tail_step: f32,
}

impl Callback {
    /// Plays what comes out of `ring`, one side of it, at `rate_hz`.
    pub fn new(ring: Consumer<PairFrame>, shared: std::sync::Arc<Shared>, rate_hz: u32) -> Self {
        let volume = f32::from_bits(shared.volume.load(Ordering::Relaxed));
        let blend = f32::from(u8::from(shared.second.load(Ordering::Relaxed)));
        let fade_step = 1.0 / (FADE_SECS * rate_hz as f32).max(1.0);
        Self {
            ring,
            shared,
            volume,
            orders_seen: 0,
            sounding: false,
            fade: 1.0,
            fade_step,
            blend,
            last: 0.0,
            tail: 0.0,
            tail_step: 0.0,
        }
    }

    /// Fills interleaved frames of `channels` samples.
    pub fn render(&mut self, out: &mut [f32], channels: usize) {
        let shared = std::sync::Arc::clone(&self.shared);
        shared.callbacks.fetch_add(1, Ordering::Relaxed);
        let channels = channels.max(1);
        let frames = out.len() / channels;
        // The ring first, the order to discard second: whatever was pushed after the order is then never taken for old.
        let mut ready = self.ring.slots();
        ready -= self.discard(ready);
        let open = shared.gate.load(Ordering::Acquire);
        if !open && self.sounding {
            self.stop();
        }
        let n = if open { ready.min(frames) } else { 0 };
        let volume_to = f32::from_bits(shared.volume.load(Ordering::Relaxed));
        let volume_step = (volume_to - self.volume) / frames.max(1) as f32;
        self.play(&mut out[..n * channels], channels, volume_step);
        if n > 0 {
            self.account(n as u64);
        }
        if n < frames {
            let dry = open && self.sounding;
            if dry && shared.consumed() < shared.end_at.load(Ordering::Acquire) {
                shared.underruns.fetch_add(1, Ordering::Relaxed);
            }
            if self.sounding {
                self.stop();
            }
            for frame in out[n * channels..].chunks_mut(channels) {
                let value = self.next_tail();
                frame.fill(value);
            }
        }
        self.volume = volume_to;
    }

    fn play(&mut self, out: &mut [f32], channels: usize, volume_step: f32) {
        let n = out.len() / channels;
        let Ok(chunk) = self.ring.read_chunk(n) else { return out.fill(0.0) };
        let (a, b) = chunk.as_slices();
        let (mut fade, mut tail, mut volume, mut blend) = (self.fade, self.tail, self.volume, self.blend);
        let blend_step = if self.shared.second.load(Ordering::Relaxed) { self.fade_step } else { -self.fade_step };
        for (frame, &[first, second]) in out.chunks_mut(channels).zip(a.iter().chain(b)) {
            volume += volume_step;
            blend = (blend + blend_step).clamp(0.0, 1.0);
            // The two are alike, so that a sum of one keeps the level; at either end it is that side to the bit.
            let sample = first * (1.0 - blend) + second * blend;
            let value = sample * volume * fade + tail;
            frame.fill(value);
            self.last = value;
            fade = (fade + self.fade_step).min(1.0);
            tail = decay(tail, self.tail_step);
        }
        chunk.commit_all();
        (self.fade, self.tail, self.blend) = (fade, tail, blend);
        self.sounding |= n > 0;
    }

    /// Counts frames as heard, and notes the time when an awaited one was among them.
    fn account(&self, n: u64) {
        let end = self.shared.consumed.fetch_add(n, Ordering::AcqRel) + n;
        if end > self.shared.awaited.load(Ordering::Acquire) {
            self.shared.awaited.store(NEVER, Ordering::Relaxed);
            let nanos = self.shared.opened.elapsed().as_nanos() as u64;
            self.shared.heard_at_nanos.store(nanos.max(1), Ordering::Release);
        }
    }

    /// Throws old frames away when there is a new order to; how many of the `ready` ones.
    fn discard(&mut self, ready: usize) -> usize {
        let orders = self.shared.orders.load(Ordering::Acquire);
        if orders == self.orders_seen {
            return 0;
        }
        self.orders_seen = orders;
        if self.sounding {
            self.stop();
        }
        let old = self.shared.discard_to.load(Ordering::Relaxed).saturating_sub(self.shared.consumed());
        let n = ready.min(usize::try_from(old).unwrap_or(usize::MAX));
        if let Ok(chunk) = self.ring.read_chunk(n) {
            chunk.commit_all();
        }
        self.shared.consumed.fetch_add(n as u64, Ordering::AcqRel);
        self.fade = if self.shared.fade_in.load(Ordering::Relaxed) { 0.0 } else { 1.0 };
        n
    }

    /// Lets the last value decay, and makes the next sound fade in.
    fn stop(&mut self) {
        self.sounding = false;
        self.fade = 0.0;
        self.tail = self.last;
        self.tail_step = self.last.abs() * self.fade_step;
        self.last = 0.0;
    }

    fn next_tail(&mut self) -> f32 {
        self.tail = decay(self.tail, self.tail_step);
        self.tail
    }
}

fn decay(tail: f32, step: f32) -> f32 {
    if tail > 0.0 { (tail - step).max(0.0) } else { (tail + step).min(0.0) }
}
