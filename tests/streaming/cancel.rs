//! A job that is cancelled does no more than the step it is in, counted in steps and not in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use myna_engine::Error;
use myna_engine::noise::{NoiseSource, SeededNoise};
use myna_engine::protocol::{CancelToken, Delivery};
use myna_engine::synthesis::SpeakRequest;

use crate::speech::{Line, edited, request, run, voice};

/// The moment at which a job is cancelled: while it draws this number for that stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// The choice of a token.
    Token(usize),
    /// The noise of a piece of the flow.
    Flow(usize),
}

/// The noise of a seed, which counts what is asked of it and cancels at a moment.
#[derive(Debug)]
struct Trap {
    seeded: SeededNoise,
    moment: Moment,
    cancel: CancelToken,
    tokens: AtomicUsize,
    flows: AtomicUsize,
    frames: AtomicUsize,
}

impl Trap {
    fn note(&self, counter: &AtomicUsize, moment: fn(usize) -> Moment) {
        let count = counter.fetch_add(1, Ordering::SeqCst) + 1;
        if moment(count) == self.moment {
            self.cancel.cancel();
        }
    }
}

impl NoiseSource for Trap {
    fn uniform(&self, sentence: usize, step: usize) -> f32 {
        self.note(&self.tokens, Moment::Token);
        self.seeded.uniform(sentence, step)
    }

    fn flow(&self, sentence: usize, start: usize, frames: usize) -> Vec<f32> {
        self.note(&self.flows, Moment::Flow);
        self.seeded.flow(sentence, start, frames)
    }

    fn prompt_flow(&self, start: usize, frames: usize) -> Vec<f32> {
        self.seeded.prompt_flow(start, frames)
    }

    fn phases(&self, sentence: usize, harmonics: usize) -> Vec<f32> {
        self.seeded.phases(sentence, harmonics)
    }

    fn source(&self, sentence: usize, start: usize, samples: usize, harmonics: usize) -> Vec<f32> {
        self.frames.fetch_add(1, Ordering::SeqCst);
        self.seeded.source(sentence, start, samples, harmonics)
    }
}

#[test]
fn a_cancelled_job_takes_no_further_step() {
    let folder = tempfile::tempdir().unwrap();
    // The embedded flow begins at zero; here it draws noise, which is when it is caught.
    let model = edited(folder.path(), |config| config["cfm_noise_scale"] = 0.1.into());
    let walter = voice(&model, "Walter");
    let text = "It was late, nobody had come home yet, and the long street lay empty in the rain.";
    let line = Line::new(text, 4, &walter);
    for delivery in [Delivery::OneShot, Delivery::Streamed] {
        // In one go there is one flow, streamed one for each piece.
        let later = Moment::Flow(if delivery == Delivery::OneShot { 1 } else { 2 });
        for moment in [Moment::Token(1), Moment::Token(30), Moment::Flow(1), later] {
            let cancel = CancelToken::default();
            let trap = Arc::new(Trap {
                seeded: SeededNoise::new(4),
                moment,
                cancel: cancel.clone(),
                tokens: AtomicUsize::new(0),
                flows: AtomicUsize::new(0),
                frames: AtomicUsize::new(0),
            });
            let request = SpeakRequest { noise: trap.clone(), cancel, ..request(&model, &line, delivery) };
            let outcome = run(&model, request);
            assert!(matches!(outcome, Err(Error::Cancelled)), "{delivery:?}, {moment:?}: {outcome:?}");
            let count = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
            let (tokens, flows, frames) = (count(&trap.tokens), count(&trap.flows), count(&trap.frames));
            println!("{delivery:?}, {moment:?}: {tokens} tokens, {flows} flows, {frames} frames");
            match moment {
                Moment::Token(n) => assert_eq!(tokens, n, "{delivery:?}: steps after the cancelled one"),
                Moment::Flow(n) => {
                    assert_eq!(flows, n, "{delivery:?}: flows after the cancelled one");
                    assert!(n > 1 || frames == 0, "{delivery:?}: the vocoder began after its flow was cancelled");
                }
            }
        }
    }
}
