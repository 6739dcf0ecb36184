//! A take: sound as it was made, kept for seeking, replaying, drawing and saving.
//!
//! The feeder appends, the window reads; both hold the lock for a copy of a few kilobytes at most. Samples live in blocks
//! of a second, so that growing never moves what is already there.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use myna_engine::protocol::{AudioChunk, Pcm, SAMPLE_RATE_HZ};

/// Samples that one pair of peaks stands for: a hundredth of a second.
pub const PEAK_SAMPLES: usize = SAMPLE_RATE_HZ as usize / 100;

const BLOCK_SAMPLES: usize = SAMPLE_RATE_HZ as usize;

/// Where a sentence begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Which sentence.
    pub sentence: usize,
    /// Its first sample.
    pub start: usize,
    /// Bytes of the text that it covers.
    pub text_range: Range<usize>,
}

/// Lowest and highest sample of a hundredth of a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Peak {
    /// Lowest.
    pub low: f32,
    /// Highest.
    pub high: f32,
}

/// Sound at 24 kHz that may still be growing.
#[derive(Debug, Default)]
pub struct Take {
    data: Mutex<Data>,
}

#[derive(Debug, Default)]
struct Data {
    blocks: Vec<Vec<f32>>,
    samples: usize,
    peaks: Vec<Peak>,
    open_peak: Peak,
    open_peak_samples: usize,
    marks: Vec<Mark>,
    complete: bool,
}

impl Take {
    /// An empty take that will grow.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A finished take of 24 kHz samples.
    pub fn from_samples(samples: &[f32]) -> Arc<Self> {
        let take = Self::new();
        take.append(samples);
        take.complete();
        take
    }

    /// Adds a chunk of the engine's.
    pub fn push(&self, chunk: &AudioChunk) {
        {
            let mut data = self.lock();
            if data.marks.last().is_none_or(|mark| mark.sentence != chunk.sentence) {
                let mark = Mark { sentence: chunk.sentence, start: data.samples, text_range: chunk.text_range.clone() };
                data.marks.push(mark);
            }
        }
        self.append(&chunk.samples);
    }

    /// Adds samples.
    pub fn append(&self, samples: &[f32]) {
        let mut data = self.lock();
        data.append(samples);
    }

    /// Says that nothing will follow.
    pub fn complete(&self) {
        self.lock().complete = true;
    }

    /// Whether nothing will follow.
    pub fn is_complete(&self) -> bool {
        self.lock().complete
    }

    /// Samples so far.
    pub fn len(&self) -> usize {
        self.lock().samples
    }

    /// Whether there is no sound yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Seconds so far.
    pub fn secs(&self) -> f32 {
        self.len() as f32 / SAMPLE_RATE_HZ as f32
    }

    /// Copies samples from `start` on into `out`; the number copied.
    pub fn read(&self, start: usize, out: &mut [f32]) -> usize {
        self.lock().read(start, out)
    }

    /// Everything so far.
    pub fn to_pcm(&self) -> Pcm {
        let data = self.lock();
        let mut samples = vec![0.0; data.samples];
        data.read(0, &mut samples);
        Pcm { samples, sample_rate_hz: SAMPLE_RATE_HZ }
    }

    /// Sentences begun so far.
    pub fn marks(&self) -> Vec<Mark> {
        self.lock().marks.clone()
    }

    /// Peaks of the whole take gathered into `columns` columns of equal width that together last `total_samples`.
    pub fn columns(&self, columns: usize, total_samples: usize) -> Vec<Peak> {
        let data = self.lock();
        let mut all = data.peaks.as_slice().to_vec();
        if data.open_peak_samples > 0 {
            all.push(data.open_peak);
        }
        drop(data);
        gather(&all, columns, total_samples as f64 / PEAK_SAMPLES as f64)
    }

    fn lock(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Data {
    fn append(&mut self, mut samples: &[f32]) {
        for &sample in samples {
            self.open_peak.low = self.open_peak.low.min(sample);
            self.open_peak.high = self.open_peak.high.max(sample);
            self.open_peak_samples += 1;
            if self.open_peak_samples == PEAK_SAMPLES {
                self.peaks.push(std::mem::take(&mut self.open_peak));
                self.open_peak_samples = 0;
            }
        }
        self.samples += samples.len();
        while !samples.is_empty() {
            if self.blocks.last().is_none_or(|block| block.len() == BLOCK_SAMPLES) {
                self.blocks.push(Vec::with_capacity(BLOCK_SAMPLES));
            }
            let Some(block) = self.blocks.last_mut() else { return };
            let (now, later) = samples.split_at(samples.len().min(BLOCK_SAMPLES - block.len()));
            block.extend_from_slice(now);
            samples = later;
        }
    }

    fn read(&self, start: usize, out: &mut [f32]) -> usize {
        let mut done = 0;
        while done < out.len() {
            let at = start + done;
            let Some(rest) = self.blocks.get(at / BLOCK_SAMPLES).and_then(|block| block.get(at % BLOCK_SAMPLES..))
            else {
                break;
            };
            if rest.is_empty() {
                break;
            }
            let n = rest.len().min(out.len() - done);
            out[done..done + n].copy_from_slice(&rest[..n]);
            done += n;
        }
        done
    }
}

/// Peaks of samples at any rate, each of `samples_per_peak`.
pub fn peaks_of(samples: &[f32], samples_per_peak: usize) -> Vec<Peak> {
    samples
        .chunks(samples_per_peak.max(1))
        .map(|chunk| chunk.iter().fold(Peak::default(), |p, &s| Peak { low: p.low.min(s), high: p.high.max(s) }))
        .collect()
}

/// Gathers peaks into columns; `total` peaks fill all of them.
pub fn gather(peaks: &[Peak], columns: usize, total: f64) -> Vec<Peak> {
    let per_column = total / columns.max(1) as f64;
    if per_column <= 0.0 {
        return Vec::new();
    }
    let filled = ((peaks.len() as f64 / per_column).ceil() as usize).min(columns);
    (0..filled)
        .map(|c| {
            let from = (c as f64 * per_column) as usize;
            let to = (((c + 1) as f64 * per_column) as usize).max(from + 1).min(peaks.len());
            let part = peaks.get(from..to).unwrap_or_default();
            part.iter().fold(Peak::default(), |a, b| Peak { low: a.low.min(b.low), high: a.high.max(b.high) })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(n: usize) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * 0.37).sin()).collect()
    }

    #[test]
    fn what_was_appended_is_read_back_across_blocks() {
        let all = ramp(3 * BLOCK_SAMPLES + 77);
        let take = Take::new();
        for part in all.chunks(4999) {
            take.append(part);
        }
        assert_eq!(take.to_pcm().samples, all);
        let mut out = vec![9.0; 600];
        assert_eq!(take.read(BLOCK_SAMPLES - 300, &mut out), 600);
        assert_eq!(out, all[BLOCK_SAMPLES - 300..BLOCK_SAMPLES + 300]);
        assert_eq!(take.read(all.len() - 10, &mut out), 10);
        assert_eq!(take.read(all.len() + 10, &mut out), 0);
    }

    #[test]
    fn columns_cover_every_peak_and_leave_the_future_empty() {
        let take = Take::new();
        let mut samples = vec![0.0; 24_000];
        samples[12_345] = 0.9;
        samples[23_999] = -0.8;
        take.append(&samples);
        let columns = take.columns(40, 48_000);
        assert_eq!(columns.len(), 20);
        assert_eq!(columns[12_345 * 20 / 24_000].high, 0.9);
        assert_eq!(columns[19].low, -0.8);
    }

    #[test]
    fn a_sentence_is_marked_once() {
        let take = Take::new();
        for (sentence, n) in [(0, 100), (0, 50), (1, 30)] {
            take.push(&AudioChunk { samples: vec![0.1; n], sentence, text_range: sentence * 5..sentence * 5 + 5 });
        }
        let marks = take.marks();
        assert_eq!(marks.iter().map(|m| m.start).collect::<Vec<_>>(), [0, 150]);
        assert_eq!(marks[1].text_range, 5..10);
    }
}
