//! When playback may begin: at once where sound is made faster than it is heard, otherwise when enough lies ahead.

use std::time::Instant;

use myna_engine::protocol::SAMPLE_RATE_HZ;

use super::take::Take;

/// Up to this many seconds of work per second of sound, the first chunk may be heard as soon as it is there.
const COMFORTABLE_RTF: f32 = 0.7;
/// Longest wait, in seconds of sound, that a slow machine is asked for.
const LONGEST_WAIT_SECS: f32 = 8.0;
/// Sound that must lie ahead after the ring has run dry, in seconds.
const AFTER_DRY_SECS: f32 = 0.4;

/// Measured speed of one job.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    begun: Instant,
    expected_secs: f32,
    before: Option<f32>,
    first: Option<(Instant, usize)>,
    last: Instant,
    samples: usize,
    dry: bool,
}

impl Pace {
    /// `before` is the speed of the job before this one.
    pub(super) fn new(begun: Instant, before: Option<f32>, expected_secs: f32) -> Self {
        Self { begun, expected_secs, before, first: None, last: begun, samples: 0, dry: false }
    }

    /// A chunk arrived.
    pub(super) fn chunk(&mut self, samples: usize, now: Instant) {
        self.samples += samples;
        self.last = now;
        if self.first.is_none() {
            self.first = Some((now, samples));
        }
    }

    /// Playback ran out of sound.
    pub(super) fn ran_dry(&mut self) {
        self.dry = true;
    }

    /// Seconds of work per second of sound: between chunks once there are two, over all with one.
    pub(super) fn rtf(&self) -> Option<f32> {
        let (at, first) = self.first?;
        let later = self.samples - first;
        let (from, samples) = if later > 0 { (at, later) } else { (self.begun, first) };
        let secs = samples as f32 / SAMPLE_RATE_HZ as f32;
        (secs > 0.0).then(|| (self.last - from).as_secs_f32() / secs)
    }

    /// Whether `ahead` samples suffice to begin.
    pub(super) fn may_start(&self, ahead: usize, take: &Take, now: Instant) -> bool {
        if take.is_complete() {
            return true;
        }
        let ahead_secs = ahead as f32 / SAMPLE_RATE_HZ as f32;
        ahead > 0 && ahead_secs >= self.start_after_secs(now)
    }

    /// Sound to lie ahead before playback begins. At speed `r` and with `d` seconds still to come, `d (1 - 1/r)` lasts.
    fn start_after_secs(&self, now: Instant) -> f32 {
        let measured = if self.samples > self.first.map_or(0, |(_, n)| n) { self.rtf() } else { None };
        // A chunk that is overdue makes the speed worse even before it arrives.
        let overdue = (now - self.last).as_secs_f32() * SAMPLE_RATE_HZ as f32 / self.samples.max(1) as f32;
        let rtf = measured.or(self.before).or_else(|| self.rtf()).unwrap_or(1.0);
        let rtf = if measured.is_some() { rtf.max(overdue.min(rtf * 2.0)) } else { rtf };
        let floor = if self.dry { AFTER_DRY_SECS } else { 0.0 };
        if rtf <= COMFORTABLE_RTF {
            return floor;
        }
        let margin = (rtf - COMFORTABLE_RTF).min(1.0);
        let to_come = (self.expected_secs - self.samples as f32 / SAMPLE_RATE_HZ as f32).max(0.0);
        let debt = if rtf > 1.0 { (to_come + 1.0) * (1.0 - 1.0 / rtf) } else { 0.0 };
        (margin + debt).clamp(floor, LONGEST_WAIT_SECS)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pace(rtf: f32, chunks: usize, expected_secs: f32) -> (Pace, Instant) {
        let begun = Instant::now();
        let mut pace = Pace::new(begun, None, expected_secs);
        let mut now = begun;
        for _ in 0..chunks {
            now += Duration::from_secs_f32(0.4 * rtf);
            pace.chunk(9600, now);
        }
        (pace, now)
    }

    #[test]
    fn a_fast_engine_is_heard_from_its_first_chunk() {
        let (pace, now) = pace(0.3, 1, 10.0);
        assert!(pace.may_start(9600, &Take::default(), now));
    }

    #[test]
    fn a_slow_engine_is_waited_for_until_it_will_not_run_dry() {
        let (pace, now) = pace(2.0, 3, 6.0);
        let take = Take::default();
        assert!(!pace.may_start(28_800, &take, now));
        // With half of six seconds ahead at half real time, the rest arrives in time.
        assert!(pace.may_start(24_000 * 4, &take, now));
        take.complete();
        assert!(pace.may_start(0, &take, now), "what is complete can be played however slow it was");
    }

    #[test]
    fn the_speed_of_the_job_before_counts_until_there_is_a_better_figure() {
        let begun = Instant::now();
        let mut pace = Pace::new(begun, Some(0.3), 10.0);
        pace.chunk(4800, begun + Duration::from_millis(900));
        assert!(pace.may_start(4800, &Take::default(), begun + Duration::from_millis(900)));
    }
}
