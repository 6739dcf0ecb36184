//! Reads what `torch.save` writes: a zip archive with one pickle and one uncompressed block of numbers per storage.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Tensor};
use zip::ZipArchive;

use super::TensorSource;
use super::pickle::{Pickle, StoredTensor, storage_bytes};
use crate::error::{Error, Result};

/// The largest pickle read: a real one is under half a megabyte.
const MAX_PICKLE_BYTES: u64 = 16 << 20;

pub(super) struct TorchFile {
    path: PathBuf,
    archive: Mutex<ZipArchive<BufReader<File>>>,
    /// Folder inside the archive, `archive/` or the name the file was saved under.
    folder: String,
    tensors: BTreeMap<String, StoredTensor>,
}

impl TorchFile {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let bad = |reason: &str| Error::model(path, format!("not a PyTorch weight file: {reason}; fetch it again"));
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|e| bad(&format!("{e}")))?;
        let names: Vec<String> = archive.file_names().filter_map(|name| Some(name.ok()?.into_owned())).collect();
        let folder =
            names.iter().find_map(|name| name.strip_suffix("data.pkl")).ok_or_else(|| bad("it holds no data.pkl"))?;
        let folder = folder.to_owned();
        let entry = archive.by_name(&format!("{folder}data.pkl")).map_err(|e| bad(&format!("{e}")))?;
        let mut pickle = Vec::new();
        entry.take(MAX_PICKLE_BYTES).read_to_end(&mut pickle).map_err(|e| Error::io(path, e))?;
        let pickle = Pickle::parse(&pickle).map_err(|reason| Error::model(path, format!("refused: {reason}")))?;
        let mut tensors: BTreeMap<String, StoredTensor> = pickle.tensors().into_iter().collect();
        // The oldest T3 files wrap the state in a dictionary of one key.
        if !tensors.is_empty() && tensors.keys().all(|name| name.starts_with("model.")) {
            tensors = tensors.into_iter().map(|(name, t)| (name["model.".len()..].to_owned(), t)).collect();
        }
        Ok(Self { path: path.to_owned(), archive: Mutex::new(archive), folder, tensors })
    }
}

impl TensorSource for TorchFile {
    fn shapes(&self) -> BTreeMap<String, Vec<usize>> {
        self.tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shape.clone())).collect()
    }

    fn read(&self, name: &str) -> Result<Tensor> {
        let tensor = self.tensors.get(name).ok_or_else(|| Error::internal(format!("no tensor {name}")))?;
        let bad = |reason: String| Error::model(&self.path, format!("tensor {name} {reason}; fetch the file again"));
        let kind = tensor.storage.kind.as_str();
        let size = storage_bytes(kind).ok_or_else(|| bad(format!("has unknown type {kind}")))?;
        let entry_name = format!("{}data/{}", self.folder, tensor.storage.key);
        let mut archive = self.archive.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entry = archive.by_name(&entry_name).map_err(|e| bad(format!("has no data ({e})")))?;
        let needed =
            tensor.span().and_then(|n| n.checked_mul(size)).ok_or_else(|| bad("has an impossible shape".into()))?;
        if (entry.size() as usize) < needed {
            return Err(bad(format!("needs {needed} bytes but the file holds {}", entry.size())));
        }
        let mut skipped = (&mut entry).take((tensor.offset * size) as u64);
        std::io::copy(&mut skipped, &mut std::io::sink()).map_err(|e| Error::io(&self.path, e))?;
        let mut bytes = vec![0u8; needed - tensor.offset * size];
        entry.read_exact(&mut bytes).map_err(|e| Error::io(&self.path, e))?;
        let bytes = tensor.gather(bytes, size);
        to_tensor(&bytes, kind, &tensor.shape).map_err(|reason| bad(reason.to_string()))
    }
}

impl StoredTensor {
    /// Elements of the storage up to the last one used, or nothing on overflow.
    fn span(&self) -> Option<usize> {
        if self.shape.contains(&0) {
            return Some(self.offset);
        }
        let mut last = self.offset;
        for (&n, &stride) in self.shape.iter().zip(&self.strides) {
            last = last.checked_add((n - 1).checked_mul(stride)?)?;
        }
        last.checked_add(1)
    }

    /// The tensor's elements in row-major order, out of a storage that starts at its offset.
    fn gather(&self, bytes: Vec<u8>, size: usize) -> Vec<u8> {
        let mut expected = 1;
        let mut contiguous = true;
        for (&n, &stride) in self.shape.iter().zip(&self.strides).rev() {
            contiguous &= n == 1 || stride == expected;
            expected *= n;
        }
        if contiguous {
            return bytes;
        }
        let count: usize = self.shape.iter().product();
        let mut out = Vec::with_capacity(count * size);
        for index in 0..count {
            let (mut rest, mut at) = (index, 0);
            for (&n, &stride) in self.shape.iter().zip(&self.strides).rev() {
                at += rest % n * stride;
                rest /= n;
            }
            out.extend_from_slice(&bytes[at * size..(at + 1) * size]);
        }
        out
    }
}

fn to_tensor(bytes: &[u8], kind: &str, shape: &[usize]) -> Result<Tensor> {
    let dtype = match kind {
        "DoubleStorage" => DType::F64,
        "FloatStorage" => DType::F32,
        "HalfStorage" => DType::F16,
        "BFloat16Storage" => DType::BF16,
        "LongStorage" => DType::I64,
        "ByteStorage" | "BoolStorage" => DType::U8,
        "IntStorage" => {
            let words = bytes.as_chunks::<4>().0.iter().map(|w| i64::from(i32::from_le_bytes(*w)));
            return Ok(Tensor::from_vec(words.collect::<Vec<i64>>(), shape, &Device::Cpu)?);
        }
        other => return Err(Error::internal(format!("has type {other}, which no network uses"))),
    };
    Ok(Tensor::from_raw_buffer(bytes, dtype, shape, &Device::Cpu)?)
}
