//! Hundreds of jobs through the real worker, cancelled at random moments: each ends in exactly one terminal event, nothing
//! hangs, and memory stays where it was. By default with the tiny model of the fixtures; `SOAK_MODEL=embedded` or a
//! folder takes another, `SOAK_JOBS=5000` makes it longer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_debug_implementations, clippy::print_stdout)]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded, unbounded};
use myna::library::{Library, read};
use myna_engine::noise::{NoiseSource, SeededNoise};
use myna_engine::protocol::{
    AudioChunk, CancelToken, Delivery, DeviceKind, JobId, LoadRequest, ModelSource, Precision, PrepareJob, SpeakJob,
    SpeakSettings, WarmJob,
};
use myna_engine::{Command, Engine, Event, Voice};

/// Jobs, where the environment does not say otherwise.
const JOBS: usize = 1000;
/// The part of them that memory is not watched in: caches fill and the heap settles (2,500 jobs: 55.2 to 56.1 MB).
const WARM_UP: f64 = 0.5;
/// A worker that says nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(300);

const TEXTS: [&str; 5] = [
    "Yes.",
    "Good morning, everybody.",
    "There is a light on in the tower.",
    "Nobody knew what had happened. The street lay empty, the doors stood open, and far away a dog barked. Then it was \
     quiet again, as if nothing had ever been there, and we went on. It was late when we came to the inn.",
    "   ",
];

/// What becomes of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    /// It may go on to its end.
    Finish,
    /// It is cancelled before the worker sees it.
    CancelAtOnce,
    /// It is cancelled when it has begun, after so many milliseconds.
    CancelLater(u64),
    /// It is cancelled when its first sound comes.
    CancelAtSound,
    /// Nobody listens to its sound any more.
    HangUp,
}

/// A job under way.
struct Open {
    fate: Fate,
    cancel: CancelToken,
    audio: Option<Receiver<AudioChunk>>,
    begun: Option<Instant>,
}

/// Random numbers by job and question.
struct Dice(SeededNoise);

impl Dice {
    fn below(&self, n: usize, job: usize, question: usize) -> usize {
        (self.0.uniform(job, question) * n as f32) as usize
    }
}

fn fate(dice: &Dice, job: usize) -> Fate {
    match dice.below(10, job, 0) {
        0..4 => Fate::Finish,
        4 => Fate::CancelAtOnce,
        5..8 => Fate::CancelLater(dice.below(120, job, 1) as u64),
        8 => Fate::CancelAtSound,
        _ => Fate::HangUp,
    }
}

/// The model that the environment asks for, or the tiny one, put together in a folder.
fn source(folder: &Path) -> ModelSource {
    match std::env::var("SOAK_MODEL") {
        Ok(name) if name == "embedded" => return ModelSource::Embedded,
        Ok(path) => return ModelSource::Folder(path.into()),
        Err(_) => {}
    }
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for part in ["tiny/english", "tiny/shared", "text/english"] {
        for entry in std::fs::read_dir(fixtures.join(part)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
    }
    // It reads 96 characters at once: longer texts come in sentences.
    let config = folder.join("config.json");
    let mut settings: serde_json::Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    settings["max_chars"] = 80.into();
    std::fs::write(&config, settings.to_string()).unwrap();
    ModelSource::Folder(folder.to_owned())
}

/// Resident bytes of this process.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("/proc tells how much memory is used");
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn every_job_ends_once_and_memory_stays_where_it_was() {
    let jobs = std::env::var("SOAK_JOBS").map_or(JOBS, |jobs| jobs.parse().expect("SOAK_JOBS is a number"));
    let engine = Engine::spawn(|| ()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let load = LoadRequest {
        source: source(folder.path()),
        variant: None,
        precision: Precision::F32,
        plan: None,
        device: DeviceKind::Cpu,
        threads: None,
        cache: None,
    };
    engine.commands.send(Command::Load(load)).unwrap();
    while !matches!(next(&engine), Event::Loaded(_)) {}
    let voices = ["Grace", "Walter"].map(|name| prepare(&engine, name));

    let dice = Dice(SeededNoise::new(2026));
    let (mut open, mut ended) = (HashMap::<JobId, Open>::new(), HashMap::<&str, usize>::new());
    let (mut sent, mut done, mut memory) = (0, 0, Vec::new());
    while done < jobs {
        // Up to three jobs wait in the mailbox at a time, as when somebody presses Speak again and again.
        while sent < jobs && open.len() <= dice.below(3, sent, 2) {
            let (id, job) = begin(&engine, &dice, sent, &voices);
            open.insert(id, job);
            sent += 1;
        }
        let event = engine.events.recv_timeout(Duration::from_millis(5));
        open.values_mut().for_each(attend);
        let Ok(event) = event else {
            let oldest = open.values().filter_map(|job| job.begun).min();
            assert!(oldest.is_none_or(|begun| begun.elapsed() < PATIENCE), "a job does not end");
            continue;
        };
        let id = event.job().expect("only jobs are running");
        let job = open.get_mut(&id).unwrap_or_else(|| panic!("{event:?} after the job had ended"));
        job.begun.get_or_insert_with(Instant::now);
        if !event.is_terminal() {
            continue;
        }
        *ended.entry(check(&event, job.fate)).or_default() += 1;
        open.remove(&id);
        done += 1;
        if done as f64 >= WARM_UP * jobs as f64 && done % (jobs / 50).max(1) == 0 {
            memory.push(resident());
        }
    }
    assert!(engine.events.recv_timeout(Duration::from_millis(200)).is_err(), "something followed the last end");
    // What is resident at one instant depends on the job under way: a leak shows in the means.
    let mean_mb = |part: &[usize]| part.iter().sum::<usize>() as f64 / 1e6 / part.len() as f64;
    let third = memory.len() / 3;
    let (first, last) = (mean_mb(&memory[..third]), mean_mb(&memory[memory.len() - third..]));
    println!("{jobs} jobs: {ended:?}; resident {first:.1} MB at first, {last:.1} MB at last");
    assert!(["finished", "cancelled", "refused"].iter().all(|end| ended[end] > jobs / 40), "{ended:?}");
    assert!(last <= 1.05 * first, "memory grew from {first:.1} to {last:.1} MB");
}

fn begin(engine: &Engine, dice: &Dice, job: usize, voices: &[Arc<Voice>]) -> (JobId, Open) {
    let (fate, id, cancel) = (fate(dice, job), JobId::new(), CancelToken::default());
    // Sometimes the listener is slow and the worker has to wait for room.
    let (audio, chunks) = if dice.below(2, job, 3) == 0 { bounded(1) } else { unbounded() };
    let settings =
        SpeakSettings { seed: job as u64, max_tokens: 4 + dice.below(40, job, 4), ..SpeakSettings::default() };
    let speak = SpeakJob {
        id,
        text: TEXTS[dice.below(TEXTS.len(), job, 5)].to_owned(),
        voice: voices[dice.below(voices.len(), job, 6)].clone(),
        settings: SpeakSettings { steps: 1, ..settings },
        delivery: if dice.below(4, job, 7) == 0 { Delivery::OneShot } else { Delivery::Streamed },
        audio,
        cancel: cancel.clone(),
    };
    if dice.below(4, job, 8) == 0 {
        // As the window does when a voice has been chosen; a press on Speak comes meanwhile.
        let warm = WarmJob { voice: speak.voice.clone(), steps: 1, cancel: cancel.clone() };
        engine.commands.send(Command::Warm(warm)).unwrap();
    }
    if fate == Fate::CancelAtOnce {
        cancel.cancel();
    }
    engine.commands.send(Command::Speak(speak)).unwrap();
    let audio = (fate != Fate::HangUp).then_some(chunks);
    (id, Open { fate, cancel, audio, begun: None })
}

/// Listens to a job and cancels it when its moment has come.
fn attend(job: &mut Open) {
    let heard = job.audio.as_ref().is_some_and(|audio| audio.try_iter().count() > 0);
    let late = |ms| job.begun.is_some_and(|begun| begun.elapsed() >= Duration::from_millis(ms));
    if matches!(job.fate, Fate::CancelLater(ms) if late(ms)) || job.fate == Fate::CancelAtSound && heard {
        job.cancel.cancel();
    }
}

/// How a job ended, if it may end so.
fn check(event: &Event, fate: Fate) -> &'static str {
    match event {
        Event::Finished { .. } => {
            assert!(fate != Fate::CancelAtOnce, "a job that was cancelled before it began was finished");
            "finished"
        }
        Event::Cancelled { .. } => {
            assert!(fate != Fate::Finish, "a job ended as cancelled that nobody cancelled");
            "cancelled"
        }
        Event::Failed { bad_input: true, error, .. } => {
            assert!(error.contains("no text"), "{error}");
            "refused"
        }
        other => panic!("{other:?}"),
    }
}

fn prepare(engine: &Engine, name: &str) -> Arc<Voice> {
    let clip = read(&Library::with_samples().by_name(name).unwrap().origin).unwrap().pcm.as_ref().clone();
    let job = PrepareJob { id: JobId::new(), clip, name: name.to_owned(), cancel: CancelToken::default() };
    engine.commands.send(Command::Prepare(job)).unwrap();
    loop {
        match next(engine) {
            Event::VoiceReady { voice, .. } => return voice,
            Event::Started { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

fn next(engine: &Engine) -> Event {
    engine.events.recv_timeout(PATIENCE).expect("the worker answers")
}
