//! T3 in a build without support for graphics cards: no sequence is ever on one.

use super::{T3, T3Conditioning, T3State};
use crate::error::Result;
use crate::meter::{CardLimits, CardWork};
use crate::sampling::SamplingOptions;

/// T3's layers on a card: there are none.
#[derive(Debug)]
pub(super) enum OnCard {}

impl OnCard {
    pub(super) fn is_usable(&self) -> bool {
        match *self {}
    }

    pub(super) fn work(&self) -> (CardWork, CardWork) {
        match *self {}
    }

    pub(super) fn limits(&self) -> Result<CardLimits> {
        match *self {}
    }
}

/// What a sequence leaves behind on a card: there is none.
#[derive(Debug)]
pub(super) enum Sequence {}

impl T3 {
    pub(super) fn new_sequence(&self, _rows: usize, _capacity: usize) -> Result<Option<Sequence>> {
        Ok(self.on_card.as_ref().map(|card| match *card {}))
    }

    pub(super) fn prefill_on_card(&self, state: &mut T3State, _: &T3Conditioning, _: &[u32]) -> Result<()> {
        state.on_card.as_ref().map_or(Ok(()), |sequence| match *sequence {})
    }

    pub(super) fn sample_on_card(
        &self,
        state: &mut T3State,
        _: &SamplingOptions,
        _: (&[f32], &[u32]),
        _: Option<&mut Vec<f32>>,
    ) -> Result<Vec<u32>> {
        state.on_card.as_ref().map_or(Ok(Vec::new()), |sequence| match *sequence {})
    }

    pub(super) fn room_on_card(&self, state: &T3State) -> usize {
        state.on_card.as_ref().map_or(0, |sequence| match *sequence {})
    }
}
