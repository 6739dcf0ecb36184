//! The graphics card: driver, context, kernels.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream, DriverError, sys};
use cudarc::nvrtc::Ptx;

use crate::error::{Error, Result};

/// The kernels, for each architecture that the build was made for.
static KERNELS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/t3.fatbin"));

/// A card with the kernels loaded. All work goes to one stream.
#[derive(Debug)]
pub struct Card {
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
    name: String,
    multiprocessors: usize,
    stream_pieces: usize,
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
        let module = context.load_module(Ptx::from_binary(KERNELS.to_vec())).map_err(|e| {
            Error::device(format!("its driver cannot load the kernels ({e}); driver 580 or newer is needed"))
        })?;
        let stream_pieces = {
            let global = module.get_global("stream_pieces", &stream).map_err(failed)?;
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
            module,
        }))
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
        let kernel = self.module.load_function(name).map_err(failed)?;
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
