//! Reads `.safetensors`: the header once, each tensor when it is asked for.
//!
//! Tensors are read with plain file reads rather than through a memory map, so that the resident size is that of the
//! tensors and not twice that.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Tensor};
use safetensors::tensor::{Dtype, Metadata};

use super::TensorSource;
use crate::error::{Error, Result};
use crate::protocol::Precision;

/// A header larger than this is a lie: the largest real one is under one megabyte.
const MAX_HEADER_BYTES: u64 = 64 << 20;

/// Bytes in a file or inside the program.
trait Bytes: Read + Seek + Send {}
impl<T: Read + Seek + Send> Bytes for T {}

pub(super) struct SafetensorsFile {
    path: PathBuf,
    file: Mutex<Box<dyn Bytes>>,
    data_start: u64,
    metadata: Metadata,
}

impl SafetensorsFile {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        Self::read_header(path, Box::new(file))
    }

    pub(super) fn from_static(path: &Path, bytes: &'static [u8]) -> Result<Self> {
        Self::read_header(path, Box::new(Cursor::new(bytes)))
    }

    fn read_header(path: &Path, mut file: Box<dyn Bytes>) -> Result<Self> {
        let size = file.seek(SeekFrom::End(0)).map_err(|e| Error::io(path, e))?;
        file.rewind().map_err(|e| Error::io(path, e))?;
        let mut length = [0u8; 8];
        file.read_exact(&mut length)
            .map_err(|_| Error::model(path, "too short for a safetensors file; fetch it again"))?;
        let header_bytes = u64::from_le_bytes(length);
        if header_bytes > MAX_HEADER_BYTES || 8 + header_bytes > size {
            return Err(Error::model(
                path,
                format!(
                    "its header claims {header_bytes} bytes but the file has {size}: not a safetensors file, or a truncated one; fetch it again"
                ),
            ));
        }
        let mut header = vec![0u8; header_bytes as usize];
        file.read_exact(&mut header).map_err(|e| Error::io(path, e))?;
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|e| Error::model(path, format!("its header is not valid safetensors ({e}); fetch it again")))?;
        let data_start = 8 + header_bytes;
        for (name, info) in metadata.tensors() {
            let end = info.data_offsets.1 as u64;
            if data_start + end > size {
                return Err(Error::model(
                    path,
                    format!(
                        "tensor {name} ends at byte {} but the file has {size}: it is truncated; fetch it again",
                        data_start + end
                    ),
                ));
            }
        }
        Ok(Self { path: path.to_owned(), file: Mutex::new(file), data_start, metadata })
    }
}

impl TensorSource for SafetensorsFile {
    fn shapes(&self) -> BTreeMap<String, Vec<usize>> {
        self.metadata.tensors().into_iter().map(|(name, info)| (name, info.shape.clone())).collect()
    }

    fn metadata(&self, key: &str) -> Option<String> {
        self.metadata.metadata().as_ref()?.get(key).cloned()
    }

    fn half(&self) -> Option<Precision> {
        let tensors = self.metadata.tensors();
        let all = |dtype| !tensors.is_empty() && tensors.values().all(|info| info.dtype == dtype);
        [(Dtype::F16, Precision::F16), (Dtype::BF16, Precision::Bf16)]
            .into_iter()
            .find_map(|(d, p)| all(d).then_some(p))
    }

    fn read(&self, name: &str) -> Result<Tensor> {
        let info = self.metadata.info(name).ok_or_else(|| Error::internal(format!("no tensor {name}")))?;
        let dtype = match info.dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            Dtype::F64 => DType::F64,
            Dtype::I64 => DType::I64,
            Dtype::U8 => DType::U8,
            other => {
                return Err(Error::model(
                    &self.path,
                    format!("tensor {name} has type {other:?}, which Myna does not read"),
                ));
            }
        };
        let (start, end) = info.data_offsets;
        let mut bytes = vec![0u8; end - start];
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(self.data_start + start as u64)).map_err(|e| Error::io(&self.path, e))?;
        file.read_exact(&mut bytes).map_err(|e| Error::io(&self.path, e))?;
        Ok(Tensor::from_raw_buffer(&bytes, dtype, &info.shape, &Device::Cpu)?)
    }
}
