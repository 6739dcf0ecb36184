//! The graphics card: driver, context, kernels.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use std::ffi::c_void;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaStream, DevicePtr, DeviceRepr, DriverError, LaunchConfig, result, sys,
};
use cudarc::nvrtc::Ptx;

use crate::error::{Error, Result};
use crate::meter::{CardLimits, CardWork};

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
    /// Whether a block may have more than 99 KB of it.
    pub(super) much_shared_memory: bool,
    /// Whether a kernel may begin before the one in front of it has ended.
    overlaps: bool,
    work: Mutex<CardWork>,
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
        let number = |module: usize, name: &str| -> Result<usize> {
            let global = modules[module].get_global(name, &stream).map_err(failed)?;
            let bytes = stream.clone_dtoh(&global).map_err(failed)?;
            Ok(bytes.first_chunk().map_or(0, |four| i32::from_le_bytes(*four) as usize))
        };
        let (stream_pieces, much_shared_memory) = (number(0, "stream_pieces")?, number(1, "much_shared_memory")? > 0);
        let count = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        Ok(Arc::new(Self {
            name: context.name().map_err(failed)?,
            multiprocessors: context.attribute(count).map_err(failed)? as usize,
            stream_pieces,
            much_shared_memory,
            context,
            stream,
            modules,
            overlaps: major >= 9,
            work: Mutex::default(),
        }))
    }

    /// The same card with another stream, whose work neither waits for this one's nor is waited for, and goes first where
    /// both have some.
    ///
    /// # Errors
    /// If the card fails.
    pub fn beside(&self) -> Result<Arc<Self>> {
        self.context.bind_to_thread().map_err(failed)?;
        let (_, highest) = result::stream::get_priority_range().map_err(failed)?;
        Ok(self.with(self.context.new_stream_with_priority(highest).map_err(failed)?))
    }

    /// The same card and stream, whose work is counted apart.
    pub fn counting(&self) -> Arc<Self> {
        self.with(self.stream.clone())
    }

    fn with(&self, stream: Arc<CudaStream>) -> Arc<Self> {
        Arc::new(Self {
            context: self.context.clone(),
            stream,
            modules: self.modules.clone(),
            name: self.name.clone(),
            multiprocessors: self.multiprocessors,
            stream_pieces: self.stream_pieces,
            much_shared_memory: self.much_shared_memory,
            overlaps: self.overlaps,
            work: Mutex::default(),
        })
    }

    /// What was started through this so far.
    pub fn work(&self) -> CardWork {
        *self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So much more work was started.
    pub(super) fn count(&self, more: CardWork) {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        work.launches += more.launches;
        work.kernels += more.kernels;
        work.operations += more.operations;
        work.bytes += more.bytes;
    }

    /// Starts one of the kernels that wait for the one before them themselves, before that one has ended if `overlaps`. It
    /// does so many `operations`.
    ///
    /// # Errors
    /// If the card fails.
    ///
    /// # Safety
    /// `args` point to arguments with the layouts of the kernel's, which point to buffers of the sizes it expects.
    pub(super) unsafe fn start(
        &self,
        kernel: &CudaFunction,
        config: LaunchConfig,
        args: &mut [*mut c_void],
        (overlaps, operations): (bool, f64),
    ) -> Result<()> {
        self.context.bind_to_thread().map_err(failed)?;
        let value = sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
        let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        let mut attribute = sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let (grid, block) = (config.grid_dim, config.block_dim);
        let config = sys::CUlaunchConfig {
            gridDimX: grid.0,
            gridDimY: grid.1,
            gridDimZ: grid.2,
            blockDimX: block.0,
            blockDimY: block.1,
            blockDimZ: block.2,
            sharedMemBytes: config.shared_mem_bytes,
            hStream: self.stream.cu_stream(),
            attrs: &mut attribute,
            numAttrs: u32::from(self.overlaps && overlaps),
        };
        // SAFETY: the caller vouches for the arguments; all else lives until the call returns.
        let done = unsafe {
            sys::cuLaunchKernelEx(&config, kernel.cu_function(), args.as_mut_ptr(), std::ptr::null_mut()).result()
        };
        done.map_err(failed)?;
        self.count(CardWork { launches: 1, kernels: 1, operations, bytes: 0.0 });
        Ok(())
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

    /// Measures what it can do: copies of a gigabyte, and products out of registers.
    ///
    /// # Errors
    /// If it lacks memory or fails.
    pub fn limits(&self) -> Result<CardLimits> {
        const BYTES: usize = 1 << 30;
        /// As in `peak` of `s3gen.cu`: products of 16 by 8 by 16 of a warp in a round.
        const PRODUCTS: usize = 8;
        const ROUNDS: i32 = 1 << 14;
        const BLOCKS_OF_EACH: usize = 4;
        let from = self.stream.alloc_zeros::<u8>(BYTES).map_err(failed)?;
        let mut to = self.stream.alloc_zeros::<u8>(BYTES).map_err(failed)?;
        let best = |work: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
            let mut best = f64::INFINITY;
            for _ in 0..5 {
                self.synchronize()?;
                let started = Instant::now();
                work()?;
                self.synchronize()?;
                best = best.min(started.elapsed().as_secs_f64());
            }
            Ok(best)
        };
        let copy = best(&mut || self.stream.memcpy_dtod(&from, &mut to).map_err(failed))?;
        let kernel = self.kernel("peak_bf16", 0)?;
        let blocks = BLOCKS_OF_EACH * self.multiprocessors;
        let (out, config) = (
            to.device_ptr(&self.stream).0,
            LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 },
        );
        // SAFETY: the kernel writes a value for each of its threads to `out`, which is far larger.
        let products =
            best(&mut || unsafe { self.start(&kernel, config, &mut [arg(&out), arg(&ROUNDS)], (false, 0.0)) })?;
        let operations = (blocks * 8 * PRODUCTS * ROUNDS as usize) as f64 * 2.0 * 16.0 * 8.0 * 16.0;
        Ok(CardLimits {
            copy_gb_per_sec: 2.0 * BYTES as f64 / copy / 1e9,
            product_tflop_per_sec: operations / products / 1e12,
            step_replay_ms: 0.0,
        })
    }

    /// Waits for all work.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().map_err(failed)
    }
}

/// Threads of a block of the decode kernel.
pub(super) const THREADS: usize = 512;

/// An argument of a kernel.
pub(super) fn arg<T: DeviceRepr>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

/// What the driver said.
pub(super) fn failed(error: DriverError) -> Error {
    Error::device(format!("the card failed: {error}"))
}
