//! Where sound goes: a device of the system's through cpal, or nowhere in particular, for tests.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use cpal::traits::{DeviceTrait, HostTrait, StreamTrait};
use cpal::{BufferSize, ErrorKind, FromSample, SampleFormat, SizedSample, StreamConfig};

use super::callback::{Callback, Fault, Shared};

/// Seconds of sound that a device asks for at a time; it holds two of these. Shorter ones were heard to stutter on a busy
/// machine, longer ones delay the first sound.
const PERIOD_SECS: f32 = 0.03;

/// Priority of the sound thread among those of the system that must not be late; sound servers have 5.
#[cfg(target_os = "linux")]
const SOUND_PRIORITY: u8 = 5;

/// A device that can be chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceName {
    /// What settings remember.
    pub id: String,
    /// What people read.
    pub name: String,
}

/// A device that plays.
pub struct Opened {
    /// Its rate.
    pub rate_hz: u32,
    /// Its name for people.
    pub name: String,
    /// Keeps it playing; dropped, it falls silent.
    pub stream: Box<dyn Stream>,
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened").field("rate_hz", &self.rate_hz).field("name", &self.name).finish_non_exhaustive()
    }
}

/// A stream that can rest while there is nothing to play.
pub trait Stream: Send {
    /// Lets the device ask for sound, or not.
    fn run(&self, running: bool);
}

/// Asks a system what can be chosen, which may take a while.
pub type ListDevices = Arc<dyn Fn() -> Vec<DeviceName> + Send + Sync>;

/// A way to the devices of a system.
pub trait Output: Send {
    /// How to learn what can be chosen, from any thread.
    fn lister(&self) -> ListDevices;

    /// Opens a device, the system's own choice without an `id`, and plays what the callback of `make` renders.
    /// Trouble that comes later is reported to `shared`.
    ///
    /// # Errors
    /// If there is no such device, or it cannot be opened.
    fn open(&mut self, id: Option<&str>, shared: &Arc<Shared>, make: &mut dyn FnMut(u32) -> Callback)
    -> Result<Opened>;
}

/// The devices of this system.
#[derive(Debug, Default)]
pub struct SystemOutput;

impl Output for SystemOutput {
    fn lister(&self) -> ListDevices {
        let name =
            |device: cpal::Device| Some(DeviceName { id: device.id().ok()?.to_string(), name: name_of(&device) });
        Arc::new(move || {
            quietly(|| {
                cpal::default_host().output_devices().map_or_else(|_| Vec::new(), |all| all.filter_map(name).collect())
            })
        })
    }

    fn open(
        &mut self,
        id: Option<&str>,
        shared: &Arc<Shared>,
        make: &mut dyn FnMut(u32) -> Callback,
    ) -> Result<Opened> {
        quietly(|| open(id, shared, make))
    }
}

fn open(id: Option<&str>, shared: &Arc<Shared>, make: &mut dyn FnMut(u32) -> Callback) -> Result<Opened> {
    let host = cpal::default_host();
    let device = match id {
        Some(id) => host
            .device_by_id(&id.parse().map_err(|_| anyhow!("there is no sound device {id}"))?)
            .context("the chosen sound device is not connected")?,
        None => host.default_output_device().context("this system has no sound device")?,
    };
    let supported = device.default_output_config().context("this system has no sound device that can be opened")?;
    let format = supported.sample_format();
    let mut config: StreamConfig = supported.into();
    let rate_hz = config.sample_rate;
    config.buffer_size = BufferSize::Fixed((rate_hz as f32 * PERIOD_SECS) as u32);
    let stream = build(&device, config, format, shared, make(rate_hz)).or_else(|_| {
        config.buffer_size = BufferSize::Default;
        build(&device, config, format, shared, make(rate_hz))
    })?;
    stream.play().context("the sound device does not start")?;
    Ok(Opened { rate_hz, name: name_of(&device), stream: Box::new(SystemStream(stream)) })
}

/// Works with sound devices; what ALSA writes about every plugin that it tries goes to the log and not to standard error.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> T {
    #[cfg(target_os = "linux")]
    let told = alsa::Output::local_error_handler();
    let done = work();
    #[cfg(target_os = "linux")]
    if let Ok(told) = told {
        let told = told.borrow().to_string();
        if !told.is_empty() {
            tracing::debug!(told, "ALSA");
        }
    }
    done
}

struct SystemStream(cpal::Stream);

impl Stream for SystemStream {
    fn run(&self, running: bool) {
        let done = if running { self.0.play() } else { self.0.pause() };
        if let Err(error) = done {
            tracing::debug!(%error, running, "sound stream");
        }
    }
}

pub(crate) fn name_of(device: &cpal::Device) -> String {
    device.description().map_or_else(|_| "sound device".to_owned(), |d| d.name().to_owned())
}

fn build(
    device: &cpal::Device,
    config: StreamConfig,
    format: SampleFormat,
    shared: &Arc<Shared>,
    callback: Callback,
) -> Result<cpal::Stream> {
    match format {
        SampleFormat::F32 => build_as::<f32>(device, config, shared, callback),
        SampleFormat::F64 => build_as::<f64>(device, config, shared, callback),
        SampleFormat::I16 => build_as::<i16>(device, config, shared, callback),
        SampleFormat::I32 => build_as::<i32>(device, config, shared, callback),
        SampleFormat::U16 => build_as::<u16>(device, config, shared, callback),
        SampleFormat::U8 => build_as::<u8>(device, config, shared, callback),
        other => Err(anyhow!("the sound device wants samples of kind {other}, which Myna does not speak")),
    }
}

fn build_as<T: SizedSample + FromSample<f32>>(
    device: &cpal::Device,
    config: StreamConfig,
    shared: &Arc<Shared>,
    mut callback: Callback,
) -> Result<cpal::Stream> {
    let channels = usize::from(config.channels).max(1);
    let mut scratch = vec![0.0; 2048 * channels];
    let trouble = Arc::clone(shared);
    let mut first = true;
    let stream = device.build_output_stream(
        config,
        move |out: &mut [T], _: &cpal::OutputCallbackInfo| {
            if std::mem::take(&mut first) {
                go_first();
            }
            for part in out.chunks_mut(scratch.len()) {
                let rendered = &mut scratch[..part.len()];
                callback.render(rendered, channels);
                for (to, from) in part.iter_mut().zip(rendered) {
                    *to = T::from_sample(*from);
                }
            }
        },
        move |error: cpal::Error| trouble.report(severity(error.kind())),
        None,
    );
    stream.context("the sound device cannot be opened")
}

/// Lets the sound thread run before the threads that compute, where the system allows that; it needs some microseconds
/// at a time. Elsewhere than on Linux the system sees to it.
fn go_first() {
    #[cfg(target_os = "linux")]
    {
        use thread_priority::{RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, unix};
        let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::RoundRobin);
        let priority = SOUND_PRIORITY.try_into().map(ThreadPriority::Crossplatform);
        let done = priority.map(|p| unix::set_thread_priority_and_policy(unix::thread_native_id(), p, policy));
        tracing::debug!(?done, "priority of the sound thread");
    }
}

fn severity(kind: ErrorKind) -> Fault {
    match kind {
        ErrorKind::DeviceNotAvailable | ErrorKind::StreamInvalidated | ErrorKind::HostUnavailable => Fault::Lost,
        ErrorKind::DeviceChanged | ErrorKind::RealtimeDenied => Fault::None,
        _ => Fault::Glitch,
    }
}
