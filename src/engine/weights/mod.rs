//! Model weights by name: opens `.safetensors` and `.pt`, hands out tensors, and reports every missing, unused and misshapen one.
//!
//! A network asks for its tensors through [`Weights::get`]. A tensor that is absent or has another shape is noted and
//! replaced by zeros, so that loading goes on and [`Weights::finish`] can list all faults at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Shape, Tensor};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::nn::LayerErrors;
use crate::protocol::Precision;

mod packs;
mod pickle;
mod safetensors_file;
mod torch_file;

pub(crate) use packs::Form;
use packs::Packs;
use safetensors_file::SafetensorsFile;
use torch_file::TorchFile;

/// About so many tensors go into a fingerprint,
const FINGERPRINT_TENSORS: usize = 64;
/// if they are no larger than this.
const FINGERPRINT_ELEMENTS: usize = 2 << 20;

/// Smaller files are packed in no time.
const CACHED_BYTES: u64 = 64 << 20;

/// Where tensors come from.
trait TensorSource: Send + Sync {
    /// Names and shapes of everything in the file.
    fn shapes(&self) -> BTreeMap<String, Vec<usize>>;
    /// A line of the file's own description.
    fn metadata(&self, _key: &str) -> Option<String> {
        None
    }
    /// The 16-bit type of all tensors, if they have one.
    fn half(&self) -> Option<Precision> {
        None
    }
    /// Reads one tensor as stored (f32, f16, bf16 or i64), onto the CPU.
    fn read(&self, name: &str) -> Result<Tensor>;
}

struct Store {
    path: PathBuf,
    source: Box<dyn TensorSource>,
    shapes: BTreeMap<String, Vec<usize>>,
    device: Device,
    ledger: Mutex<Ledger>,
    packs: Option<Packs>,
}

#[derive(Default)]
struct Ledger {
    used: BTreeSet<String>,
    missing: BTreeMap<String, Vec<usize>>,
    misshapen: BTreeMap<String, (Vec<usize>, Vec<usize>)>,
}

/// A view into one weight file below a dotted prefix. Cheap to clone.
#[derive(Clone)]
pub struct Weights {
    store: Arc<Store>,
    prefix: String,
    shapes_only: bool,
    precision: Precision,
    wide: bool,
    measure: Option<Arc<LayerErrors>>,
}

/// How a layer keeps its weights.
#[derive(Debug, Clone, Default)]
pub struct Keep {
    /// The precision.
    pub precision: Precision,
    /// Whether 8-bit weights meet 16-bit activations.
    pub wide: bool,
    /// If given, the layer computes in f32 and only tells, under this name, what the precision would cost.
    pub measure: Option<(String, Arc<LayerErrors>)>,
}

impl Keep {
    /// What the layer computes at.
    pub fn computed(&self) -> Precision {
        if self.measure.is_some() { Precision::F32 } else { self.precision }
    }
}

impl std::fmt::Debug for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Weights({}, {:?})", self.store.path.display(), self.prefix)
    }
}

impl Weights {
    /// Opens a weight file for `device`.
    ///
    /// # Errors
    /// If the file cannot be read or its header is not that of a weight file.
    pub fn open(path: &Path, device: &Device) -> Result<Self> {
        let mut magic = [0u8; 4];
        let mut file = std::fs::File::open(path).map_err(|e| Error::io(path, e))?;
        // A short file is left to the reader of its format, which says so better.
        let is_zip = std::io::Read::read_exact(&mut file, &mut magic).is_ok() && &magic == b"PK\x03\x04";
        let source: Box<dyn TensorSource> =
            if is_zip { Box::new(TorchFile::open(path)?) } else { Box::new(SafetensorsFile::open(path)?) };
        Ok(Self::new(path.to_owned(), source, device))
    }

    /// Weights that are part of the program; `path` only names them in messages.
    ///
    /// # Errors
    /// If they are not a weight file.
    pub fn from_static(path: &Path, bytes: &'static [u8], device: &Device) -> Result<Self> {
        Ok(Self::new(path.to_owned(), Box::new(SafetensorsFile::from_static(path, bytes)?), device))
    }

    fn new(path: PathBuf, source: Box<dyn TensorSource>, device: &Device) -> Self {
        let shapes = source.shapes();
        let store = Store { path, source, shapes, device: device.clone(), ledger: Mutex::default(), packs: None };
        Self {
            store: Arc::new(store),
            prefix: String::new(),
            shapes_only: false,
            precision: Precision::F32,
            wide: false,
            measure: None,
        }
    }

    /// The same with packed matrices kept in `folder`, if the file is so large that this pays. `usage` tells apart what the
    /// file is loaded as: precisions, dimensions.
    #[must_use]
    pub fn with_cache(mut self, folder: Option<&Path>, usage: &str) -> Self {
        let size = std::fs::metadata(self.path()).map_or(0, |about| about.len());
        let folder = folder.filter(|_| cfg!(test) || size >= CACHED_BYTES);
        if let (Some(folder), Some(store)) = (folder, Arc::get_mut(&mut self.store)) {
            store.packs = Some(Packs::open(folder, &store.path, &store.shapes, usage));
        }
        self
    }

    /// Where the layers at this view keep packed matrices, if they do.
    pub(crate) fn packs(&self) -> Option<&Packs> {
        let plain = !self.shapes_only && self.measure.is_none() && self.device().is_cpu();
        self.store.packs.as_ref().filter(|_| plain)
    }

    /// Name of the tensor `name` of this view in the whole file.
    pub(crate) fn name_of(&self, name: &str) -> String {
        self.full(name)
    }

    /// The file these weights come from.
    pub fn path(&self) -> &Path {
        &self.store.path
    }

    /// A line of the file's own description, where its format has one.
    pub fn metadata(&self, key: &str) -> Option<String> {
        self.store.source.metadata(key)
    }

    /// The device tensors are put on.
    pub fn device(&self) -> &Device {
        &self.store.device
    }

    /// The view below `name`: `w.pp("layers").pp(3)` sees `layers.3.*`.
    #[must_use]
    pub fn pp(&self, name: impl Display) -> Self {
        Self { prefix: self.full(&name.to_string()), ..self.clone() }
    }

    /// A view whose projections and convolutions are kept at `precision`; everything else stays f32.
    #[must_use]
    pub fn at(&self, precision: Precision) -> Self {
        Self { precision, ..self.clone() }
    }

    /// A view whose layers keep what the file has in 16 bits at 16 bits where f32 was asked for: the same numbers, and half
    /// as much to read.
    #[must_use]
    pub fn as_stored(&self) -> Self {
        match self.store.source.half() {
            Some(half) if self.precision == Precision::F32 => self.at(half),
            _ => self.clone(),
        }
    }

    /// A view whose layers, where they are kept at 8 bits, take activations of 16: for networks with outliers whose time
    /// goes into reading weights.
    #[must_use]
    pub fn wide(&self) -> Self {
        Self { wide: true, ..self.clone() }
    }

    /// How projections and convolutions below this view are kept.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// A view whose layers compute in f32 and tell `errors` what their precision would cost.
    #[must_use]
    pub fn measuring(&self, errors: Option<&Arc<LayerErrors>>) -> Self {
        Self { measure: errors.cloned(), ..self.clone() }
    }

    /// How the layer at this view keeps its weights.
    pub fn keep(&self) -> Keep {
        let measured = self.measure.as_ref().filter(|_| self.precision != Precision::F32);
        Keep {
            precision: self.precision,
            wide: self.wide,
            measure: measured.map(|errors| (self.prefix.clone(), errors.clone())),
        }
    }

    /// A view that checks names and shapes and hands out zeros in place of what is stored.
    #[must_use]
    pub fn shapes_only(&self) -> Self {
        Self { shapes_only: true, ..self.clone() }
    }

    fn full(&self, name: &str) -> String {
        match (self.prefix.is_empty(), name.is_empty()) {
            (true, _) => name.to_owned(),
            (false, true) => self.prefix.clone(),
            (false, false) => format!("{}.{name}", self.prefix),
        }
    }

    /// The stored shape of `name`, if it is there.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.store.shapes.get(&self.full(name)).map(Vec::as_slice)
    }

    /// Whether `name` is there.
    pub fn contains(&self, name: &str) -> bool {
        self.shape(name).is_some()
    }

    /// The tensor `name` as f32 on the device. One that is missing or of another shape is noted for
    /// [`Self::finish`] and comes back as zeros.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn get(&self, name: &str, shape: impl Into<Shape>) -> Result<Tensor> {
        let (name, shape) = (self.full(name), shape.into());
        match self.store.shapes.get(&name) {
            Some(found) if found == shape.dims() => {
                self.ledger().used.insert(name.clone());
                if self.shapes_only {
                    // One zero, repeated without memory of its own.
                    return Ok(Tensor::zeros(1, DType::F32, &self.store.device)?.broadcast_as(shape)?);
                }
                let tensor = self.store.source.read(&name)?;
                Ok(tensor.to_dtype(DType::F32)?.to_device(&self.store.device)?)
            }
            Some(found) => {
                self.ledger().misshapen.insert(name, (shape.dims().to_vec(), found.clone()));
                Ok(Tensor::zeros(shape, DType::F32, &self.store.device)?)
            }
            None => {
                self.ledger().missing.insert(name, shape.dims().to_vec());
                Ok(Tensor::zeros(shape, DType::F32, &self.store.device)?)
            }
        }
    }

    /// The tensor `name` as stored: its own type and shape, on the CPU. Nothing if it is absent.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn get_raw(&self, name: &str) -> Result<Option<Tensor>> {
        let name = self.full(name);
        if !self.store.shapes.contains_key(&name) {
            return Ok(None);
        }
        self.ledger().used.insert(name.clone());
        self.store.source.read(&name).map(Some)
    }

    /// Names these weights: SHA-256, in hex, of all names and shapes and of [`FINGERPRINT_TENSORS`] tensors spread over
    /// the file. Hashing gigabytes would take longer than loading them.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn fingerprint(&self) -> Result<String> {
        if let Some(known) = self.store.packs.as_ref().and_then(Packs::fingerprint) {
            return Ok(known);
        }
        let mut hash = Sha256::new();
        let shapes = &self.store.shapes;
        let every = shapes.len().div_ceil(FINGERPRINT_TENSORS).max(1);
        for (i, (name, shape)) in shapes.iter().enumerate() {
            hash.update(format!("{name} {shape:?}\n"));
            let small = shape.iter().product::<usize>() <= FINGERPRINT_ELEMENTS;
            if small && i % every == 0 {
                let tensor = self.store.source.read(name)?.to_dtype(DType::F32)?;
                for value in tensor.flatten_all()?.to_vec1::<f32>()? {
                    hash.update(value.to_le_bytes());
                }
            }
        }
        Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
    }

    /// Declares every tensor whose full name starts with the prefix and `name` as known but not needed.
    pub fn ignore(&self, name: &str) {
        let start = self.full(name);
        let mut ledger = self.ledger();
        for key in self.store.shapes.keys().filter(|key| key.starts_with(&start)) {
            ledger.used.insert(key.clone());
        }
    }

    /// Which part of the file, by numbers, has been asked for so far: 0 to 1.
    pub fn asked_for(&self) -> f32 {
        let size = |shape: &[usize]| shape.iter().product::<usize>() as f32;
        let all: f32 = self.store.shapes.values().map(|shape| size(shape)).sum();
        let used: f32 = self.ledger().used.iter().filter_map(|name| self.store.shapes.get(name)).map(|s| size(s)).sum();
        if all > 0.0 { used / all } else { 1.0 }
    }

    /// Ends loading.
    ///
    /// # Errors
    /// If anything was missing, misshapen or never asked for: the error lists all of it by name.
    pub fn finish(&self) -> Result<()> {
        let ledger = self.ledger();
        let mut faults: Vec<String> = Vec::new();
        for (name, shape) in &ledger.missing {
            faults.push(format!("missing {name} {shape:?}"));
        }
        for (name, (expected, found)) in &ledger.misshapen {
            faults.push(format!("{name} should have shape {expected:?} but has {found:?}"));
        }
        // What comes packed out of the cache is not asked for, and was when it was packed.
        if !self.store.packs.as_ref().is_some_and(Packs::is_finished) {
            for name in self.store.shapes.keys().filter(|name| !ledger.used.contains(*name)) {
                faults.push(format!("unused {name} {:?}", self.store.shapes[name]));
            }
        }
        if faults.is_empty() {
            return Ok(());
        }
        Err(Error::model(&self.store.path, format!("these weights do not fit this model:\n  {}", faults.join("\n  "))))
    }

    /// Ends loading for good: what was packed stays in the cache.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn keep_packed(&self) -> Result<()> {
        match &self.store.packs {
            Some(packs) if !packs.is_finished() => {
                packs.finish(&self.fingerprint()?);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.store.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
