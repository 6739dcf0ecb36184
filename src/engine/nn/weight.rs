//! Weight matrices of layers, and their products on each device.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Device, Tensor};

use super::activation::{Activation, activate};
use crate::error::{Error, Result};
use crate::kernels::matrix::Matrix;
use crate::kernels::product::{Finish, Rows, product};
use crate::kernels::view::{from_f32, with_f32};
use crate::protocol::Precision;
use crate::weights::{Form, Keep, Weights};

/// A weight matrix `(out, in)` where it is used: packed for the CPU's products, a tensor on other devices.
#[derive(Debug, Clone)]
pub(super) enum Weight {
    Cpu(Arc<Packed>),
    Device(Tensor),
}

/// Weights as the CPU multiplies with them.
#[derive(Debug)]
pub(super) struct Packed {
    matrix: Matrix,
    /// The same at a lower precision, where its error is measured.
    measured: Option<Measured>,
}

#[derive(Debug)]
struct Measured {
    matrix: Matrix,
    names: Vec<String>,
    errors: Arc<LayerErrors>,
}

impl Weight {
    /// From a tensor `(out, in)`; how it is kept matters on the CPU only.
    pub(super) fn new(weight: &Tensor, keep: &Keep) -> Result<Self> {
        let (n, k) = weight.dims2()?;
        if !matches!(weight.device(), Device::Cpu) {
            return Ok(Self::Device(weight.clone()));
        }
        // A single zero spread out stands for weights that are not loaded (`Weights::shapes_only`).
        if weight.stride() == [0, 0] {
            return Ok(Self::Cpu(Arc::new(Packed { matrix: Matrix::zeros(n, k), measured: None })));
        }
        with_f32(weight, |rows| {
            let packed = match &keep.measure {
                None => Packed { matrix: Matrix::pack_for(rows, n, k, keep.precision, keep.wide), measured: None },
                Some((name, errors)) => {
                    let lower = Matrix::pack_for(rows, n, k, keep.precision, keep.wide);
                    let measured = Measured { matrix: lower, names: vec![name.clone()], errors: errors.clone() };
                    Packed { matrix: Matrix::pack(rows, n, k, Precision::F32), measured: Some(measured) }
                }
            };
            Ok(Self::Cpu(Arc::new(packed)))
        })
    }

    /// The weight `name` of the layer at `w`, `(out, in)`: packed out of the cache, or from what `tensor` reads.
    pub(super) fn load(
        w: &Weights,
        name: &str,
        (outputs, inputs): (usize, usize),
        tensor: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Self> {
        let keep = w.keep();
        let Some(packs) = w.packs() else { return Self::new(&tensor()?, &keep) };
        let form = Form { outputs, inputs, precision: keep.precision, wide: keep.wide };
        let name = w.name_of(name);
        if let Some(matrix) = packs.read(&name, form) {
            return Ok(Self::Cpu(Arc::new(Packed { matrix, measured: None })));
        }
        let weight = Self::new(&tensor()?, &keep)?;
        if let Self::Cpu(packed) = &weight {
            packs.write(&name, form, &packed.matrix);
        }
        Ok(weight)
    }

    /// The rows of several as one.
    pub(super) fn stack(parts: &[&Self]) -> Result<Self> {
        let packed: Vec<&Packed> = parts
            .iter()
            .filter_map(|part| match part {
                Self::Cpu(packed) => Some(&**packed),
                Self::Device(_) => None,
            })
            .collect();
        if packed.len() == parts.len() {
            let matrices: Vec<&Matrix> = packed.iter().map(|part| &part.matrix).collect();
            let measured: Vec<&Measured> = packed.iter().filter_map(|part| part.measured.as_ref()).collect();
            let measured = match measured.first() {
                Some(first) if measured.len() == parts.len() => Some(Measured {
                    matrix: Matrix::stack(&measured.iter().map(|part| &part.matrix).collect::<Vec<_>>()),
                    names: measured.iter().flat_map(|part| part.names.clone()).collect(),
                    errors: first.errors.clone(),
                }),
                _ => None,
            };
            return Ok(Self::Cpu(Arc::new(Packed { matrix: Matrix::stack(&matrices), measured })));
        }
        let tensors: Vec<&Tensor> = parts
            .iter()
            .filter_map(|part| match part {
                Self::Cpu(_) => None,
                Self::Device(tensor) => Some(tensor),
            })
            .collect();
        Ok(Self::Device(Tensor::cat(&tensors, 0)?))
    }

    /// Outputs and inputs.
    pub(super) fn dims(&self) -> Result<(usize, usize)> {
        match self {
            Self::Cpu(packed) => Ok((packed.matrix.outputs(), packed.matrix.inputs())),
            Self::Device(tensor) => Ok(tensor.dims2()?),
        }
    }
}

/// `act(rows Wᵀ + bias + residual)` on the CPU, as a tensor of `shape`.
pub(super) fn finished_product(
    x: Rows<'_>,
    w: &Packed,
    bias: Option<&Tensor>,
    activation: Activation,
    residual: Option<&Tensor>,
    shape: &[usize],
) -> Result<Tensor> {
    if let Some(Measured { matrix, names, errors }) = &w.measured {
        let (exact, found) = (product(x, &w.matrix, Finish::default()), product(x, matrix, Finish::default()));
        errors.add(names, (matrix.outputs(), matrix.inputs()), &exact, &found);
    }
    finished(w, Finish { activation, ..Finish::default() }, bias, residual, shape, |w, finish| product(x, w, finish))
}

/// What `run` makes with a bias and a residual of `shape`.
pub(super) fn finished(
    w: &Packed,
    finish: Finish<'_>,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
    shape: &[usize],
    run: impl Fn(&Matrix, Finish<'_>) -> Vec<f32>,
) -> Result<Tensor> {
    if let Some(residual) = residual
        && residual.dims() != shape
    {
        return Err(Error::internal(format!("a product of {shape:?} cannot be added to {:?}", residual.dims())));
    }
    let with_bias = |residual: Option<&[f32]>| match bias {
        None => Ok(run(&w.matrix, Finish { residual, ..finish })),
        Some(bias) => with_f32(bias, |bias| Ok(run(&w.matrix, Finish { bias: Some(bias), residual, ..finish }))),
    };
    let out = match residual {
        None => with_bias(None),
        Some(residual) => with_f32(residual, |residual| with_bias(Some(residual))),
    }?;
    from_f32(out, shape)
}

/// The same in the operations every device has; `ys` is the bare product.
pub(super) fn finish_on_device(
    ys: Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let ys = match bias {
        Some(bias) => ys.broadcast_add(bias)?,
        None => ys,
    };
    let ys = match residual {
        Some(residual) => (ys + residual)?,
        None => ys,
    };
    activate(&ys, activation)
}

/// How far the outputs of layers are from f32 when their weights are kept at a lower precision, each on the inputs it
/// gets in a run at f32.
#[derive(Debug, Default)]
pub struct LayerErrors {
    layers: Mutex<BTreeMap<String, LayerError>>,
}

/// One layer's error.
#[derive(Debug, Clone, Copy, Default)]
pub struct LayerError {
    /// Outputs and inputs.
    pub shape: (usize, usize),
    /// Rows that went through it.
    pub rows: usize,
    difference: f64,
    norm: f64,
}

impl LayerError {
    /// |a - b| / |a| over all outputs.
    pub fn relative(&self) -> f64 {
        if self.norm > 0.0 { (self.difference / self.norm).sqrt() } else { 0.0 }
    }
}

impl LayerErrors {
    /// All layers so far, the worst first.
    pub fn worst_first(&self) -> Vec<(String, LayerError)> {
        let layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = layers.iter().map(|(name, error)| (name.clone(), *error)).collect();
        all.sort_by(|a, b| b.1.relative().total_cmp(&a.1.relative()));
        all
    }

    fn add(&self, names: &[String], shape: (usize, usize), exact: &[f32], found: &[f32]) {
        let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
        let difference = squares(&mut exact.iter().zip(found).map(|(a, b)| a - b));
        let norm = squares(&mut exact.iter().copied());
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        let layer = layers.entry(names.join(" + ")).or_default();
        layer.shape = shape;
        layer.rows += exact.len() / shape.0.max(1);
        layer.difference += difference;
        layer.norm += norm;
    }
}
