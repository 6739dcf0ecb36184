//! S3Gen in a build without support for graphics cards: it is never on one.

use std::ops::Range;

use candle_core::Tensor;

use super::config::Chunks;
use super::flow::{Conditions, Solver};
use crate::error::Result;
use crate::meter::CardWork;

/// Encoder and flow on a card: there are none.
#[derive(Debug)]
pub(super) enum OnCard {}

impl OnCard {
    pub(super) fn is_usable(&self) -> bool {
        match *self {}
    }

    pub(super) fn work(&self) -> CardWork {
        match *self {}
    }

    pub(super) fn replay_ms(&self) -> Result<f64> {
        match *self {}
    }

    pub(super) fn encode(&self, _: &[u32], _: Option<Chunks>) -> Result<Tensor> {
        match *self {}
    }

    pub(super) fn solve(
        &self,
        _: &Tensor,
        _: &Conditions<'_>,
        _: Solver,
        _: Option<Chunks>,
        _: (&dyn Fn() -> Result<Vec<f32>>, &dyn Fn() -> bool),
    ) -> Result<Tensor> {
        match *self {}
    }
}

/// The vocoder on a card: there is none.
#[derive(Debug)]
pub(super) enum HiftOnCard {}

impl HiftOnCard {
    pub(super) fn is_usable(&self) -> bool {
        match *self {}
    }

    pub(super) fn work(&self) -> CardWork {
        match *self {}
    }

    pub(super) fn pitch(&self, _: &Tensor) -> Result<Vec<f32>> {
        match *self {}
    }

    pub(super) fn render(&self, _: &Tensor, _: &[f32], _: Range<usize>) -> Result<Vec<f32>> {
        match *self {}
    }
}
