//! Records a clip from the microphone: a countdown, a level, and an end at the latest after [`MAX_SECS`].

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use cpal::traits::{DeviceTrait, HostTrait, StreamTrait};
use cpal::{FromSample, SampleFormat, SizedSample, StreamConfig};
use myna_engine::protocol::Pcm;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::player::{Wake, name_of, quietly};

/// Longest recording, in seconds.
pub const MAX_SECS: f32 = 15.0;
/// Time to take a breath, in seconds.
pub const COUNTDOWN_SECS: f32 = 3.0;

const TICK: Duration = Duration::from_millis(30);
const RING_SAMPLES: usize = 192_000;
/// A microphone that gives nothing for so long is absent.
const DEAF: Duration = Duration::from_secs(3);

/// What the recorder is doing.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum RecorderStatus {
    /// Nothing.
    #[default]
    Idle,
    /// About to begin.
    Countdown {
        /// Seconds left.
        secs: f32,
        /// Loudest sample of late, 0 to 1.
        level: f32,
    },
    /// Recording.
    Recording {
        /// Seconds so far.
        secs: f32,
        /// Loudest sample of late, 0 to 1.
        level: f32,
    },
}

/// A way to a microphone.
pub trait Microphone: Send {
    /// Opens it; mono samples go to `sink` at the rate returned, until the guard is dropped.
    ///
    /// # Errors
    /// If there is none, or it cannot be opened.
    fn open(&mut self, sink: Producer<f32>) -> Result<(u32, Box<dyn Send>)>;
}

/// The system's own choice of a microphone.
#[derive(Debug, Default)]
pub struct SystemMicrophone;

impl Microphone for SystemMicrophone {
    fn open(&mut self, sink: Producer<f32>) -> Result<(u32, Box<dyn Send>)> {
        quietly(|| open(sink))
    }
}

fn open(sink: Producer<f32>) -> Result<(u32, Box<dyn Send>)> {
    let device = cpal::default_host().default_input_device().context("this system has no microphone")?;
    let supported = device.default_input_config().context("this system has no microphone that can be opened")?;
    let format = supported.sample_format();
    let config: StreamConfig = supported.into();
    tracing::info!(device = name_of(&device), rate = config.sample_rate, "recording");
    let stream = match format {
        SampleFormat::F32 => listen::<f32>(&device, config, sink),
        SampleFormat::I16 => listen::<i16>(&device, config, sink),
        SampleFormat::I32 => listen::<i32>(&device, config, sink),
        SampleFormat::U16 => listen::<u16>(&device, config, sink),
        SampleFormat::U8 => listen::<u8>(&device, config, sink),
        other => Err(anyhow!("the microphone gives samples of kind {other}, which Myna does not read")),
    }?;
    stream.play().context("the microphone does not start")?;
    Ok((config.sample_rate, Box::new(stream)))
}

fn listen<T: SizedSample>(device: &cpal::Device, config: StreamConfig, mut sink: Producer<f32>) -> Result<cpal::Stream>
where
    f32: FromSample<T>,
{
    let channels = usize::from(config.channels).max(1);
    let stream = device.build_input_stream(
        config,
        move |data: &[T], _: &cpal::InputCallbackInfo| {
            for frame in data.chunks_exact(channels) {
                let sum: f32 = frame.iter().map(|&s| <f32 as FromSample<T>>::from_sample_(s)).sum();
                // A full ring means that the recorder is late by seconds; the newest samples are lost then.
                let _ = sink.push(sum / channels as f32);
            }
        },
        |_| {},
        None,
    );
    stream.context("the microphone cannot be opened")
}

const GO_ON: u8 = 0;
const KEEP: u8 = 1;
const FORGET: u8 = 2;

/// A recording in progress.
#[derive(Debug)]
pub struct Recorder {
    status: Arc<Mutex<RecorderStatus>>,
    order: Arc<AtomicU8>,
}

impl Recorder {
    /// Begins the countdown. `done` is called once, from another thread: with the clip, nothing, or what went wrong.
    ///
    /// # Errors
    /// If no thread can be had.
    pub fn start(
        microphone: Arc<Mutex<dyn Microphone>>,
        wake: Wake,
        done: impl FnOnce(Result<Option<Pcm>>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let status = Arc::new(Mutex::new(RecorderStatus::Countdown { secs: COUNTDOWN_SECS, level: 0.0 }));
        let order = Arc::new(AtomicU8::new(GO_ON));
        let (shown, told) = (Arc::clone(&status), Arc::clone(&order));
        std::thread::Builder::new().name("recorder".to_owned()).spawn(move || {
            let clip = record(&microphone, &shown, &told, &wake);
            *shown.lock().unwrap_or_else(PoisonError::into_inner) = RecorderStatus::Idle;
            done(clip);
            wake();
        })?;
        Ok(Self { status, order })
    }

    /// How it goes.
    pub fn status(&self) -> RecorderStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends it and keeps what was recorded.
    pub fn finish(&self) {
        let _ = self.order.compare_exchange(GO_ON, KEEP, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Ends it and keeps nothing.
    pub fn cancel(&self) {
        self.order.store(FORGET, Ordering::Relaxed);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Writes a recording into a folder, under a name that is free.
///
/// # Errors
/// If the folder cannot be made or written.
pub fn keep(folder: &Path, clip: &Pcm) -> Result<PathBuf> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let free = (1..).map(|n| folder.join(format!("Recording {n}.wav"))).find(|path| !path.exists());
    let path = free.context("no name is free")?;
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: clip.sample_rate_hz,
        bits_per_sample: 32,
        sample_format: hound::SampleFormat::Float,
    };
    let file = tempfile::NamedTempFile::new_in(folder)?;
    let mut writer = hound::WavWriter::new(std::io::BufWriter::new(file.as_file()), spec)?;
    for &sample in &clip.samples {
        writer.write_sample(sample)?;
    }
    writer.finalize()?;
    file.persist(&path)?;
    Ok(path)
}

fn record(
    microphone: &Mutex<dyn Microphone>,
    shown: &Mutex<RecorderStatus>,
    told: &AtomicU8,
    wake: &Wake,
) -> Result<Option<Pcm>> {
    let (sink, mut source) = RingBuffer::new(RING_SAMPLES);
    let (sample_rate_hz, _open) = microphone.lock().unwrap_or_else(PoisonError::into_inner).open(sink)?;
    let begun = Instant::now();
    let mut heard = begun;
    let mut samples = Vec::new();
    let mut counting = true;
    loop {
        std::thread::sleep(TICK);
        let order = told.load(Ordering::Relaxed);
        if order == FORGET {
            return Ok(None);
        }
        let before = samples.len();
        drain(&mut source, &mut samples);
        if samples.len() > before {
            heard = Instant::now();
        } else if heard.elapsed() > DEAF {
            return Err(anyhow!("the microphone gives no sound; is it plugged in and allowed?"));
        }
        let level = samples[before..].iter().fold(0.0f32, |a, s| a.max(s.abs()));
        let left = COUNTDOWN_SECS - begun.elapsed().as_secs_f32();
        let status = if left > 0.0 {
            samples.clear();
            RecorderStatus::Countdown { secs: left, level }
        } else {
            if std::mem::take(&mut counting) {
                tracing::info!("listening");
            }
            RecorderStatus::Recording { secs: samples.len() as f32 / sample_rate_hz as f32, level }
        };
        *shown.lock().unwrap_or_else(PoisonError::into_inner) = status;
        wake();
        let most = (MAX_SECS * sample_rate_hz as f32) as usize;
        if order == KEEP || samples.len() >= most {
            samples.truncate(most);
            let kept = !samples.is_empty();
            return Ok(kept.then_some(Pcm { samples, sample_rate_hz }));
        }
    }
}

fn drain(source: &mut Consumer<f32>, samples: &mut Vec<f32>) {
    let n = source.slots();
    if let Ok(chunk) = source.read_chunk(n) {
        let (a, b) = chunk.as_slices();
        samples.extend_from_slice(a);
        samples.extend_from_slice(b);
        chunk.commit_all();
    }
}
