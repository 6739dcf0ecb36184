//! Streamed speech beside the same speech made in one go, with the same seed and noise: no edge is heard, the spectrum is
//! the same, and so is the watermark.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_debug_implementations)]

mod ahead;
mod cancel;
mod clicks;
mod speech;

use std::sync::Arc;

use clicks::movement;
use myna_engine::dsp::mel::s3gen_mel;
use myna_engine::model::Model;
use myna_engine::protocol::{Delivery, ModelSource};
use myna_engine::trace::Trace;
use myna_engine::watermark::Watermarker;
use speech::{Line, Spoken, load, speak, voice, without_masks};

const VOICES: [&str; 4] = ["Grace", "Walter", "Nora", "Marcus"];

const TEXTS: [&str; 20] = [
    "The rain had stopped before dawn, and somebody was whistling in the harbour.",
    "Please put the blue cup back on the top shelf.",
    "How many people are coming to dinner on Thursday?",
    "A narrow path led down to the river between two old stone walls.",
    "I never thought it would take this long to paint one small room.",
    "Stop! You have forgotten your keys again.",
    "The museum opens at ten and closes at half past five.",
    "She sells fresh bread, soft cheese and six kinds of apples.",
    "Without a word he closed the book and walked away.",
    "Numbers such as forty two and ninety nine are easy to remember.",
    "The little dog barked at every car that passed the house.",
    "If it snows tomorrow, the schools will stay shut.",
    "Peter packed paper, pencils and a pair of pocket scissors.",
    "There was nothing left to do but wait for the morning train.",
    "Her voice was calm, although her hands were shaking.",
    "We measured it twice and still cut it too short.",
    "Quick, take a picture before the clouds cover the moon!",
    "Many thanks for your letter, which arrived on Monday.",
    "The engine coughed, turned over once, and died.",
    "Good night, and do not forget to lock the door.",
];

/// Fades from a piece to the next last one mel frame.
const FADE_SAMPLES: usize = 480;

/// Mean difference of the log-mels of two clips of equal length.
fn log_mel_distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let (a, b) = (s3gen_mel(a).unwrap(), s3gen_mel(b).unwrap());
    a.data.iter().zip(&b.data).map(|(a, b)| (a - b).abs()).sum::<f32>() / a.data.len() as f32
}

fn both(model: &Arc<Model>, line: &Line<'_>) -> (Spoken, Spoken) {
    (speak(model, line, Delivery::Streamed, Trace::off()), speak(model, line, Delivery::OneShot, Trace::off()))
}

/// What was found over several texts.
struct Findings {
    /// Movement at edges over what one place in a thousand elsewhere exceeds; or, where the speech itself moves more than
    /// that, over what the clip made in one go does in the same places.
    step: f32,
    flux: f32,
    /// Mean difference of the log-mels.
    distance: f32,
    /// The same between two clips made in one go of which only the flow's and the vocoder's noise differs.
    seeds: f32,
}

/// Speaks every `nth` text both ways.
fn examine(model: &Arc<Model>, nth: usize) -> Findings {
    let voices = VOICES.map(|name| voice(model, name));
    let mut found = Findings { step: 0.0, flux: 0.0, distance: 0.0, seeds: 0.0 };
    let (mut texts, mut edges) = (0, 0);
    for (i, text) in TEXTS.iter().enumerate().step_by(nth) {
        let line = Line::new(text, i as u64, &voices[i % voices.len()]);
        let (live, whole) = both(model, &line);
        assert_eq!(live.samples.len(), whole.samples.len(), "{text}");
        assert!(live.seams.len() >= 2 && whole.seams.is_empty(), "{} seams: {text}", live.seams.len());
        // What could be heard lies where a fade begins and where it ends.
        let places: Vec<usize> = live.seams.iter().flat_map(|&seam| [seam, seam + FADE_SAMPLES]).collect();
        let (moved, itself) = (movement(&live.samples, &places), movement(&whole.samples, &places));
        let distance = log_mel_distance(&live.samples, &whole.samples);
        let other = Line { sound_seed: Some(1000 + i as u64), ..line };
        let other = speak(model, &other, Delivery::OneShot, Trace::off());
        let seeds = log_mel_distance(&other.samples, &whole.samples);
        found.seeds += seeds;
        let seams = live.seams.len();
        println!(
            "{moved:?}, in one go {itself:?}, log-mel {distance:.3}, of two seeds {seeds:.3}, {seams} seams: {text}"
        );
        found.step = found.step.max(moved.step / itself.step.max(1.0));
        found.flux = found.flux.max(moved.flux / itself.flux.max(1.0));
        found.distance += distance;
        texts += 1;
        edges += live.seams.len();
    }
    found.distance /= texts as f32;
    found.seeds /= texts as f32;
    let Findings { step, flux, distance, seeds } = found;
    println!("{edges} seams: step {step:.2}, flux {flux:.2}, log-mel distance {distance:.3}, of two seeds {seeds:.3}");
    found
}

#[test]
fn the_embedded_model_streams_without_a_click_what_it_says_in_one_go() {
    let Findings { step, flux, distance, seeds } = examine(&load(ModelSource::Embedded), 1);
    // One edge in seventy reaches 1.05 in its spectrum.
    assert!(step <= 1.0 && flux <= 1.1, "an edge is heard: step {step}, flux {flux}");
    assert!(distance < 0.05, "log-mel distance {distance}, of two seeds {seeds}");
}

/// `STREAM_MODEL=DIR` examines that checkpoint instead, with fewer texts.
#[test]
fn an_ordinary_checkpoint_streams_without_a_click_what_it_nearly_says_in_one_go() {
    let folder = tempfile::tempdir().unwrap();
    let (model, nth) = match std::env::var_os("STREAM_MODEL") {
        Some(folder) => (load(ModelSource::Folder(folder.into())), 10),
        None => (without_masks(folder.path()), 2),
    };
    let Findings { step, flux, distance, seeds } = examine(&model, nth);
    // One edge in 34 reaches 1.12 in its spectrum (where the clip made in one go itself moves by 1.04).
    assert!(step <= 1.0 && flux <= 1.2, "an edge is heard: step {step}, flux {flux}");
    // Another seed is as good a performance of the same tokens; streaming must change less than that. Both distances are
    // larger with random weights (0.344 and 0.417 with a full-size Nano).
    assert!(distance < seeds, "log-mel distance {distance}, of two seeds {seeds}");
}

#[test]
fn the_mark_put_on_chunk_by_chunk_is_that_of_the_whole() {
    let model = load(ModelSource::Embedded);
    let (grace, folder) = (voice(&model, "Grace"), tempfile::tempdir().unwrap());
    let marker = Watermarker::embedded().unwrap();
    for (i, text) in TEXTS.iter().enumerate().step_by(5) {
        let line = Line::new(text, i as u64, &grace);
        let chunks = speak(&model, &line, Delivery::Streamed, Trace::off()).chunks;
        let trace = Trace::into(folder.path()).unwrap();
        let whole = speak(&model, &line, Delivery::OneShot, trace).samples;
        let plain = recorded(&folder.path().join("wav.safetensors"), "wav");
        let (mut state, mut marked, mut at) = (marker.start(), Vec::new(), 0);
        for length in chunks {
            let end = (at + length).min(plain.len());
            marked.extend(marker.push(&mut state, &plain[at..end]).unwrap());
            at = end;
        }
        marked.extend(marker.push(&mut state, &plain[at..]).unwrap());
        marked.extend(marker.finish(state).unwrap());
        assert_eq!(marked.len(), whole.len());
        let far = marked.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let mark = plain.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("mark up to {mark:.4}, chunks off by {far:.2e}: {text}");
        assert!(mark > 1e-3 && far < 1e-5, "a mark of up to {mark}, chunk by chunk off by {far}");
    }
}

fn recorded(path: &std::path::Path, name: &str) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let data = tensors.tensor(name).unwrap().data().to_vec();
    data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}
