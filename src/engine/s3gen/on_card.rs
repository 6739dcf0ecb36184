//! S3Gen on a graphics card: encoder, flow and vocoder, each from host to host.
//!
//! A card makes everything in sight anew for every chunk, which costs it less than carrying what layers remember: see
//! `anew.rs`. The CPU keeps its weights: a card that failed is left for it.

mod encoder;
mod estimator;
mod load;
mod vocoder;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{Device, Tensor};

use self::encoder::Encoder;
use self::estimator::{Estimator, FlowInputs};
use self::load::{Loader, flat};
use self::vocoder::Vocoder;
use super::S3Gen;
use super::carry::Place;
use super::config::{Chunks, MEL_CHANNELS};
use super::flow::{Conditions, Solver};
use super::hift::{Hift, HiftConfig};
use crate::cuda::layers::{Layers, Store};
use crate::cuda::{Card, Number};
use crate::error::{Error, Result};
use crate::meter::CardWork;
use crate::nn::Mask;
use crate::weights::Weights;

/// Bytes that must be free beside the weights.
const ACTIVATIONS: usize = 300 << 20;

/// Encoder and flow on a card.
#[derive(Debug)]
pub(super) struct OnCard {
    layers: Layers,
    networks: Mutex<Networks>,
    lost: AtomicBool,
}

#[derive(Debug)]
struct Networks {
    encoder: Encoder,
    estimator: Estimator,
    store: Store,
    /// What times add to the resnets, for each solver so far.
    shifts: Vec<(Solver, u64)>,
}

/// The vocoder on a card.
#[derive(Debug)]
pub(super) struct HiftOnCard {
    layers: Layers,
    vocoder: Mutex<Vocoder>,
    lost: AtomicBool,
}

impl S3Gen {
    /// Has encoder and flow run on a card from now on; `w` is the file this was loaded from.
    ///
    /// # Errors
    /// If the card lacks memory or fails, or has no kernels for these dimensions.
    pub fn put_on_card(&mut self, w: &Weights, card: &Arc<Card>, number: Number) -> Result<()> {
        let config = &self.config;
        let layers = Layers::new(card.clone(), number)?;
        layers.check(config.dim, config.dim / config.heads)?;
        layers.check(config.estimator.channels, config.estimator.head_dim)?;
        let free = card.free_bytes()?;
        if free < ACTIVATIONS {
            return Err(Error::device(format!("{} has {} MB free, too little for S3Gen", card.name(), free >> 20)));
        }
        let mut store = Store::new(card.clone());
        let w = w.pp("flow");
        let mut to = Loader { store: &mut store, number };
        let encoder = Encoder::load(&w, config, &mut to)?;
        let estimator = Estimator::load(&w.pp("decoder.estimator"), &config.estimator, &mut to)?;
        card.synchronize()?;
        let networks = Mutex::new(Networks { encoder, estimator, store, shifts: Vec::new() });
        self.flow.on_card = Some(Arc::new(OnCard { layers, networks, lost: AtomicBool::new(false) }));
        Ok(())
    }

    /// Bytes on the card: weights, activations.
    pub fn bytes_on_card(&self) -> (usize, usize) {
        self.flow.on_card.as_ref().map_or((0, 0), |card| {
            let networks = card.lock();
            (networks.store.bytes(), networks.encoder.bytes() + networks.estimator.bytes())
        })
    }

    #[cfg(test)]
    fn record(&self, records: bool) {
        if let Some(card) = &self.flow.on_card {
            let mut networks = card.lock();
            networks.encoder.record(records);
            networks.estimator.record(records);
        }
    }

    #[cfg(test)]
    fn poison(&self) {
        if let Some(card) = &self.flow.on_card {
            let mut networks = card.lock();
            networks.encoder.poison(&card.layers);
            networks.estimator.poison(&card.layers);
        }
    }
}

impl Hift {
    /// Has the vocoder run on a card from now on; `w` is what this was loaded from.
    ///
    /// # Errors
    /// As [`S3Gen::put_on_card`].
    pub fn put_on_card(&mut self, w: &Weights, config: &HiftConfig, card: &Arc<Card>) -> Result<()> {
        let layers = Layers::new(card.counting(), Number::F32)?;
        let vocoder = Vocoder::load(w, config, Store::new(card.clone()))?;
        card.synchronize()?;
        self.on_card =
            Some(Arc::new(HiftOnCard { layers, vocoder: Mutex::new(vocoder), lost: AtomicBool::new(false) }));
        Ok(())
    }

    /// Bytes on the card: weights, activations.
    pub fn bytes_on_card(&self) -> (usize, usize) {
        self.on_card.as_ref().map_or((0, 0), |card| card.vocoder.lock().unwrap_or_else(PoisonError::into_inner).bytes())
    }

    #[cfg(test)]
    fn record(&self, records: bool) {
        if let Some(card) = &self.on_card {
            card.vocoder.lock().unwrap_or_else(PoisonError::into_inner).record(records);
        }
    }

    #[cfg(test)]
    fn poison(&self) {
        if let Some(card) = &self.on_card {
            card.vocoder.lock().unwrap_or_else(PoisonError::into_inner).poison(&card.layers);
        }
    }
}

impl OnCard {
    /// Whether it has not failed.
    pub(super) fn is_usable(&self) -> bool {
        !self.lost.load(Ordering::Relaxed)
    }

    /// What it did so far.
    pub(super) fn work(&self) -> CardWork {
        self.layers.card().work()
    }

    /// Milliseconds of the step used last.
    pub(super) fn replay_ms(&self) -> Result<f64> {
        Ok(self.lock().estimator.replay_ms(&self.layers)?.unwrap_or_default())
    }

    fn lock(&self) -> MutexGuard<'_, Networks> {
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `Flow::encode` of a whole sequence.
    pub(super) fn encode(&self, tokens: &[u32], chunks: Option<Chunks>) -> Result<Tensor> {
        let mu = self.lock().encoder.forward(&self.layers, tokens, chunks).map_err(|e| lose(&self.lost, e))?;
        let frames = mu.len() / MEL_CHANNELS;
        Ok(Tensor::from_vec(mu, (1, frames, MEL_CHANNELS), &Device::Cpu)?)
    }

    /// `Flow::solve` of a whole sequence; `time_shifts` are what the times of all steps add to the resnets,
    /// `(steps, resnets, channels)`.
    pub(super) fn solve(
        &self,
        x: &Tensor,
        conditions: &Conditions<'_>,
        solver: Solver,
        chunks: Option<Chunks>,
        (time_shifts, cancelled): (&dyn Fn() -> Result<Vec<f32>>, &dyn Fn() -> bool),
    ) -> Result<Tensor> {
        let mut networks = self.lock();
        let networks = &mut *networks;
        let shifts = match networks.shifts.iter().find(|(of, _)| *of == solver) {
            Some((_, shifts)) => *shifts,
            None => {
                let values = time_shifts()?;
                if values.len() != solver.steps() * networks.estimator.shifts() {
                    return Err(Error::internal("the times of a solver do not fit the estimator"));
                }
                let shifts = networks.store.vector(&values).map_err(|e| lose(&self.lost, e))?;
                networks.shifts.push((solver, shifts));
                shifts
            }
        };
        let inputs = FlowInputs {
            x: &flat(x)?,
            mu: &flat(conditions.mu)?,
            cond: &flat(conditions.cond)?,
            speaker: &flat(conditions.speaker)?,
            shifts,
            times: &solver.schedule(),
            guidance: solver.guidance().map(|rate| rate as f32),
            chunks,
        };
        let mel = networks.estimator.solve(&self.layers, &inputs, cancelled).map_err(|e| lose(&self.lost, e))?;
        Ok(Tensor::from_vec(mel, x.dims(), &Device::Cpu)?)
    }
}

impl HiftOnCard {
    /// Whether it has not failed.
    pub(super) fn is_usable(&self) -> bool {
        !self.lost.load(Ordering::Relaxed)
    }

    /// What it did so far.
    pub(super) fn work(&self) -> CardWork {
        self.layers.card().work()
    }

    /// Pitches of `mel: (1, T, 80)`.
    pub(super) fn pitch(&self, mel: &Tensor) -> Result<Vec<f32>> {
        let mut vocoder = self.vocoder.lock().unwrap_or_else(PoisonError::into_inner);
        vocoder.pitch(&self.layers, &flat(mel)?).map_err(|e| lose(&self.lost, e))
    }

    /// Samples of frames `keep` of `mel: (1, T, 80)`.
    pub(super) fn render(&self, mel: &Tensor, source: &[f32], keep: Range<usize>) -> Result<Vec<f32>> {
        let mut vocoder = self.vocoder.lock().unwrap_or_else(PoisonError::into_inner);
        vocoder.render(&self.layers, &flat(mel)?, source, keep).map_err(|e| lose(&self.lost, e))
    }
}

/// What each of `rows` rows sees, sent to `at`; 0 where all see all.
fn send_ranges(on: &Layers, at: u64, rows: usize, chunks: Option<Chunks>) -> Result<u64> {
    match (Place { start: 0, chunks }).mask(rows, rows) {
        Mask::Ranges(ranges) => {
            let bytes: Vec<u8> =
                ranges.iter().flat_map(|(from, to)| [from.to_le_bytes(), to.to_le_bytes()]).flatten().collect();
            on.send_bytes(at, &bytes)?;
            Ok(at)
        }
        _ => Ok(0),
    }
}

/// Leaves a card that failed.
fn lose(lost: &AtomicBool, error: Error) -> Error {
    if let Error::Device(why) = &error {
        lost.store(true, Ordering::Relaxed);
        return Error::Device(format!("{why}; what comes next runs on the CPU"));
    }
    error
}

#[cfg(test)]
mod tests;
