//! Chains of launches that are recorded once and started as one: what a launch costs the processor, ten microseconds and more
//! for each of some hundred kernels, would otherwise be most of the time.

use std::time::Instant;

use cudarc::driver::CudaGraph;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

use super::card::failed;
use super::layers::Layers;
use crate::error::{Error, Result};
use crate::meter::CardWork;

/// Chains held at a time; the one used longest ago goes first. A chain of some hundred kernels takes about a megabyte.
const MOST: usize = 24;

/// Recorded chains, told apart by what their arguments depend on.
#[derive(Debug)]
pub(crate) struct Graphs<K> {
    held: Vec<(K, Recorded)>,
    /// For comparison: launch by launch otherwise.
    pub(crate) records: bool,
}

struct Recorded {
    graph: CudaGraph,
    work: CardWork,
}

impl std::fmt::Debug for Recorded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorded").field("work", &self.work).finish_non_exhaustive()
    }
}

// SAFETY: a graph wants no more than one thread at a time, which `&mut Graphs` sees to.
unsafe impl Send for Recorded {}

impl<K: PartialEq> Graphs<K> {
    pub(crate) fn new() -> Self {
        Self { held: Vec::new(), records: true }
    }

    /// Does `work`, which launches kernels and copies on the card and nothing else, the same for every equal `key`. The
    /// addresses that it uses belong to the key.
    ///
    /// # Errors
    /// If `work` or the card fails.
    pub(crate) fn run(&mut self, on: &Layers, key: K, work: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.records {
            return work();
        }
        let recorded = match self.held.iter().position(|(held, _)| *held == key) {
            Some(at) => {
                let (_, recorded) = self.held.remove(at);
                on.card().count(recorded.work);
                recorded
            }
            None => record(on, work)?,
        };
        recorded.graph.launch().map_err(failed)?;
        if self.held.len() == MOST {
            self.held.remove(0);
        }
        self.held.push((key, recorded));
        Ok(())
    }

    /// Milliseconds that the chain used last takes, started over and over; nothing if there is none.
    ///
    /// # Errors
    /// If the card fails.
    pub(crate) fn replay_ms(&self, on: &Layers) -> Result<Option<f64>> {
        const TURNS: u32 = 20;
        let Some((_, recorded)) = self.held.last() else { return Ok(None) };
        on.card().synchronize()?;
        let started = Instant::now();
        for _ in 0..TURNS {
            recorded.graph.launch().map_err(failed)?;
        }
        on.card().synchronize()?;
        Ok(Some(started.elapsed().as_secs_f64() * 1e3 / f64::from(TURNS)))
    }
}

fn record(on: &Layers, work: impl FnOnce() -> Result<()>) -> Result<Recorded> {
    let stream = &on.card().stream;
    let before = on.card().work();
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(failed)?;
    let done = work();
    // A recording that was begun has to be ended, whatever came of it.
    let graph = stream.end_capture(CUgraphInstantiate_flags(0));
    done?;
    let graph = graph.map_err(failed)?.ok_or_else(|| Error::internal("nothing was recorded for the card"))?;
    let work = CardWork { launches: 1, ..on.card().work().since(&before) };
    Ok(Recorded { graph, work })
}
