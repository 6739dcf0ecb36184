//! How long the window's own thread works: frame by frame, and call by call.
//!
//! It is always measured, because reading the clock costs nothing beside a frame. A summary goes to the log when the window
//! closes; where [`FILE`] names a file, everything is written there as JSON. Times are wall times: where the machine gives
//! the thread no core, that counts as well.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{Debug, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;

/// Environment variable with the name of the file.
pub const FILE: &str = "MYNA_FRAME_TIMES";

/// A call that takes longer is felt.
pub const LONG: Duration = Duration::from_millis(2);

/// Frames that are remembered: some twenty minutes of them.
const KEPT: usize = 80_000;

/// What the window's thread did.
#[derive(Debug)]
pub struct FrameTimes {
    started: Instant,
    frames: VecDeque<Frame>,
    calls: BTreeMap<String, Calls>,
    /// Time spent in the frame that is being made.
    open: Duration,
}

/// One frame.
#[derive(Debug, Clone, Copy, Serialize)]
struct Frame {
    /// When it was done, since the start.
    at_ms: f32,
    /// Work of the application: taking in what happened, laying out, carrying out what was asked for.
    ms: f32,
    /// The same with tessellation and drawing; known only for the frame before.
    drawn_ms: f32,
    /// Whether speech was being made.
    busy: bool,
}

/// All calls of one kind.
#[derive(Debug, Default, Clone, Copy, Serialize)]
struct Calls {
    count: usize,
    /// How many took longer than [`LONG`].
    long: usize,
    max_ms: f32,
}

/// Figures of some frames, in milliseconds.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// How many.
    pub frames: usize,
    /// Median.
    pub p50_ms: f32,
    /// 99th percentile.
    pub p99_ms: f32,
    /// Longest.
    pub max_ms: f32,
}

#[derive(Serialize)]
struct Report<'a> {
    /// From the start of the program to the first frame.
    first_frame_ms: Option<f32>,
    all: Summary,
    busy: Summary,
    busy_with_drawing: Summary,
    calls: &'a BTreeMap<String, Calls>,
    frames: &'a VecDeque<Frame>,
}

impl FrameTimes {
    /// Nothing yet; `started` is when the program began.
    pub fn since(started: Instant) -> Self {
        Self { started, frames: VecDeque::new(), calls: BTreeMap::new(), open: Duration::ZERO }
    }

    /// Notes a call of this frame.
    pub fn call(&mut self, name: &str, took: Duration) {
        let ms = took.as_secs_f32() * 1e3;
        if took > LONG {
            tracing::debug!(name, ms, "a call held the window up");
        }
        // The name is only copied when it is new.
        if !self.calls.contains_key(name) {
            self.calls.insert(name.to_owned(), Calls::default());
        }
        if let Some(calls) = self.calls.get_mut(name) {
            calls.count += 1;
            calls.long += usize::from(took > LONG);
            calls.max_ms = calls.max_ms.max(ms);
        }
    }

    /// Adds work to the frame that is being made.
    pub fn work(&mut self, took: Duration) {
        self.open += took;
    }

    /// Ends a frame. `drawn` is what the one before took with everything.
    pub fn end(&mut self, drawn: Duration, busy: bool) {
        if let Some(before) = self.frames.back_mut() {
            before.drawn_ms = drawn.as_secs_f32() * 1e3;
        } else {
            tracing::info!(ms = self.started.elapsed().as_secs_f32() * 1e3, "first frame");
        }
        if self.frames.len() == KEPT {
            self.frames.pop_front();
        }
        let (at_ms, ms) = (self.started.elapsed().as_secs_f32() * 1e3, self.open.as_secs_f32() * 1e3);
        self.frames.push_back(Frame { at_ms, ms, drawn_ms: ms, busy });
        self.open = Duration::ZERO;
    }

    /// Figures of all frames.
    pub fn summary(&self) -> Summary {
        summarize(self.frames.iter().map(|frame| frame.ms))
    }

    /// Longest call, and its name.
    pub fn longest_call(&self) -> Option<(&str, f32)> {
        let longest = self.calls.iter().max_by(|a, b| a.1.max_ms.total_cmp(&b.1.max_ms));
        longest.map(|(name, calls)| (name.as_str(), calls.max_ms))
    }

    /// Writes everything as JSON.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let busy = || self.frames.iter().filter(|frame| frame.busy);
        let report = Report {
            first_frame_ms: self.frames.front().map(|frame| frame.at_ms),
            all: self.summary(),
            busy: summarize(busy().map(|frame| frame.ms)),
            busy_with_drawing: summarize(busy().map(|frame| frame.drawn_ms)),
            calls: &self.calls,
            frames: &self.frames,
        };
        let bytes = serde_json::to_vec(&report)?;
        std::fs::write(path, bytes).with_context(|| path.display().to_string())
    }
}

fn summarize(millis: impl Iterator<Item = f32>) -> Summary {
    let mut sorted: Vec<f32> = millis.collect();
    sorted.sort_by(f32::total_cmp);
    let at = |share: f32| {
        let place = (share * sorted.len().saturating_sub(1) as f32).ceil() as usize;
        sorted.get(place).copied().unwrap_or_default()
    };
    Summary { frames: sorted.len(), p50_ms: at(0.5), p99_ms: at(0.99), max_ms: at(1.0) }
}

/// The first word of how something prints itself: the name of an enum's variant, without its fields.
pub fn variant_name(value: &dyn Debug) -> String {
    struct FirstWord(String);
    impl Write for FirstWord {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            let end = text.find(|c: char| !c.is_alphanumeric());
            self.0.push_str(&text[..end.unwrap_or(text.len())]);
            // An error ends the printing: the fields may be long.
            if end.is_some() { Err(std::fmt::Error) } else { Ok(()) }
        }
    }
    let mut word = FirstWord(String::new());
    let _ = write!(word, "{value:?}");
    word.0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::action::Action;

    #[test]
    fn percentiles_are_those_of_the_frames() {
        let mut times = FrameTimes::since(Instant::now());
        for ms in 1..=200u64 {
            times.work(Duration::from_millis(ms));
            times.end(Duration::from_millis(ms), ms > 100);
        }
        let summary = times.summary();
        assert_eq!(summary.frames, 200);
        assert!((summary.p50_ms - 101.0).abs() < 1.1, "{summary:?}");
        assert!((summary.p99_ms - 199.0).abs() < 1.1 && summary.max_ms == 200.0, "{summary:?}");
    }

    #[test]
    fn the_report_names_the_calls_that_took_long() {
        let mut times = FrameTimes::since(Instant::now());
        times.call("Seek", Duration::from_micros(30));
        times.call("Seek", Duration::from_millis(5));
        times.call("Stop", Duration::from_micros(1));
        times.work(Duration::from_millis(3));
        times.end(Duration::from_millis(4), true);
        assert_eq!(times.longest_call(), Some(("Seek", 5.0)));
        let file = tempfile::NamedTempFile::new().unwrap();
        times.write(file.path()).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
        assert_eq!(report["calls"]["Seek"]["count"], 2);
        assert_eq!(report["calls"]["Seek"]["long"], 1);
        assert_eq!(report["calls"]["Stop"]["long"], 0);
        assert_eq!(report["busy"]["frames"], 1);
        assert!(report["first_frame_ms"].as_f64().is_some());
    }

    #[test]
    fn a_variant_is_named_without_its_fields() {
        assert_eq!(variant_name(&Action::Speak), "Speak");
        assert_eq!(variant_name(&Action::Seek(1.5)), "Seek");
        assert_eq!(variant_name(&Action::DropFiles(vec!["/a/b".into()])), "DropFiles");
    }
}
