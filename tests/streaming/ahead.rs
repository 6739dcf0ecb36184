//! Long texts: while one sentence is being played, the next is already thought of.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use myna_engine::Error;
use myna_engine::noise::{NoiseSource, SeededNoise};
use myna_engine::protocol::{CancelToken, Delivery, ModelSource};
use myna_engine::synthesis::{SpeakRequest, Synthesis};
use myna_engine::trace::Trace;

use crate::speech::{Line, load, request, speak, voice};

/// The noise of a seed, which notes the latest sentence that a token was chosen for.
#[derive(Debug)]
struct Latest {
    seeded: SeededNoise,
    sentence: AtomicUsize,
}

impl NoiseSource for Latest {
    fn uniform(&self, sentence: usize, step: usize) -> f32 {
        self.sentence.fetch_max(sentence, Ordering::SeqCst);
        self.seeded.uniform(sentence, step)
    }

    fn flow(&self, sentence: usize, start: usize, frames: usize) -> Vec<f32> {
        self.seeded.flow(sentence, start, frames)
    }

    fn phases(&self, sentence: usize, harmonics: usize) -> Vec<f32> {
        self.seeded.phases(sentence, harmonics)
    }

    fn source(&self, sentence: usize, start: usize, samples: usize, harmonics: usize) -> Vec<f32> {
        self.seeded.source(sentence, start, samples, harmonics)
    }
}

#[test]
fn the_next_sentence_begins_while_the_first_is_played_and_none_is_lost() {
    let model = load(ModelSource::Embedded);
    let walter = voice(&model, "Walter");
    let text = "It was late, and nobody had come home yet. The street lay empty under the lamps. Then, far away, a door \
                opened and somebody began to sing. ";
    let text = text.repeat(3);
    let line = Line::new(&text, 9, &walter);
    let noise = Arc::new(Latest { seeded: SeededNoise::new(9), sentence: AtomicUsize::new(0) });
    let asked = SpeakRequest { noise: noise.clone(), ..request(&model, &line, Delivery::Streamed) };
    let mut synthesis = Synthesis::start(&model, asked).unwrap();
    let first = synthesis.next_chunk(&mut |_| ()).unwrap().unwrap();
    assert_eq!((first.sentence, noise.sentence.load(Ordering::SeqCst)), (0, 0));
    // The listener has sound and asks for none; T3 goes on.
    let begun = Instant::now();
    while noise.sentence.load(Ordering::SeqCst) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "T3 waits for the listener");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut sentences = vec![first.sentence];
    let mut covered = first.text_range.end;
    while let Some(chunk) = synthesis.next_chunk(&mut |_| ()).unwrap() {
        assert!(!chunk.samples.is_empty());
        sentences.push(chunk.sentence);
        covered = covered.max(chunk.text_range.end);
    }
    let stats = synthesis.stats();
    sentences.dedup();
    assert_eq!(sentences, (0..stats.sentences).collect::<Vec<_>>(), "sentences come in order and none is lost");
    assert!(stats.sentences >= 3 && covered >= text.trim_end().len(), "{covered} of {} bytes", text.len());
}

#[test]
fn a_voice_that_was_worked_through_before_says_the_same() {
    let cold = load(ModelSource::Embedded);
    let walter = voice(&cold, "Walter");
    let line = Line::new("Good morning, everybody.", 3, &walter);
    let warm = load(ModelSource::Embedded);
    let (steps, cancelled) = (warm.info().defaults.steps, CancelToken::default());
    cancelled.cancel();
    assert!(matches!(warm.warm(&walter, steps, &cancelled), Err(Error::Cancelled)));
    warm.warm(&walter, steps, &CancelToken::default()).unwrap();
    let said = [&cold, &warm].map(|model| speak(model, &line, Delivery::Streamed, Trace::off()).samples);
    assert!(said[0] == said[1]);
}
