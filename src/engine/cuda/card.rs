//! The graphics card: driver, context, kernels.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream, DriverError, sys};
use cudarc::nvrtc::Ptx;

use crate::error::{Error, Result};

/// The kernels of T3 and of S3Gen, for each architecture that the build was made for.
static T3: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/t3.fatbin"));
static S3GEN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/s3gen.fatbin"));

/// A card with the kernels loaded. All work goes to one stream.
#[derive(Debug)]
pub struct Card {
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    modules: [Arc<CudaModule>; 2],
    name: String,
    multiprocessors: usize,
    stream_pieces: usize,
    launches: AtomicUsize,
}

impl Card {
    /// Opens the first card.
    ///
    /// # Errors
    /// If there is no driver or card, or the driver is too old for the kernels; the text says which.
    pub fn open() -> Result<Arc<Self>> {
        // cudarc panics where the library is missing.
        // SAFETY: loads the driver's library, whose initialisers are the vendor's.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::device("no NVIDIA driver is installed"));
        }
        let context = CudaContext::new(0).map_err(|e| Error::device(format!("no card can be used ({e})")))?;
        let (major, minor) = context.compute_capability().map_err(failed)?;
        if major < 8 {
            return Err(Error::device(format!("the card's architecture {major}.{minor} is older than 8.0")));
        }
        // SAFETY: everything runs on one stream, in order.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(failed)?;
        let load = |kernels: &[u8]| {
            context.load_module(Ptx::from_binary(kernels.to_vec())).map_err(|e| {
                Error::device(format!("its driver cannot load the kernels ({e}); driver 580 or newer is needed"))
            })
        };
        let modules = [load(T3)?, load(S3GEN)?];
        let stream_pieces = {
            let global = modules[0].get_global("stream_pieces", &stream).map_err(failed)?;
            let bytes = stream.clone_dtoh(&global).map_err(failed)?;
            bytes.first_chunk().map_or(0, |four| i32::from_le_bytes(*four) as usize)
        };
        let count = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        Ok(Arc::new(Self {
            name: context.name().map_err(failed)?,
            multiprocessors: context.attribute(count).map_err(failed)? as usize,
            stream_pieces,
            context,
            stream,
            modules,
            launches: AtomicUsize::new(0),
        }))
    }

    /// The same card with another stream, whose work neither waits for this one's nor is waited for.
    ///
    /// # Errors
    /// If the card fails.
    pub fn beside(&self) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            context: self.context.clone(),
            stream: self.context.new_stream().map_err(failed)?,
            modules: self.modules.clone(),
            name: self.name.clone(),
            multiprocessors: self.multiprocessors,
            stream_pieces: self.stream_pieces,
            launches: AtomicUsize::new(0),
        }))
    }

    /// Layers started on this stream so far.
    pub fn launches(&self) -> usize {
        self.launches.load(Ordering::Relaxed)
    }

    pub(super) fn count_launch(&self) {
        self.launches.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes that are free.
    ///
    /// # Errors
    /// If the card fails.
    pub fn free_bytes(&self) -> Result<usize> {
        self.context.mem_get_info().map(|(free, _)| free).map_err(failed)
    }

    /// The vendor's name of it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of multiprocessors.
    pub(super) fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    /// Bytes of shared memory that a decode kernel's stream of weights takes.
    pub(super) fn stream_bytes(&self) -> usize {
        self.stream_pieces * 16 * THREADS
    }

    /// A kernel by name; `shared` bytes of shared memory beyond the usual limit, 0 for none.
    pub(super) fn kernel(&self, name: &str, shared: usize) -> Result<CudaFunction> {
        let [t3, s3gen] = &self.modules;
        let kernel = t3.load_function(name).or_else(|_| s3gen.load_function(name)).map_err(failed)?;
        if shared > 0 {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            kernel.set_attribute(attribute, shared as i32).map_err(|e| {
                Error::device(format!("{} lacks the {shared} bytes of shared memory for this model ({e})", self.name))
            })?;
        }
        Ok(kernel)
    }

    /// Waits for all work.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().map_err(failed)
    }
}

/// Threads of a block of the decode kernel.
pub(super) const THREADS: usize = 512;

/// What the driver said.
pub(super) fn failed(error: DriverError) -> Error {
    Error::device(format!("the card failed: {error}"))
}
