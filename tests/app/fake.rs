//! Stands in for the engine, the sound card, the microphone and the dialogs: the test plays their parts.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use crossbeam_channel::{Receiver, Sender, unbounded};
use egui_kittest::Harness;
use myna::app::{App, Parts};
use myna::comparison::{self, Comparer};
use myna::dialogs::{Dialogs, Reply};
use myna::download::Hub;
use myna::player::{Callback, DeviceName, Fault, ListDevices, Opened, Output, Shared, Stream};
use myna::recorder::Microphone;
use myna::settings_file::SettingsFile;
use myna::state::Offers;
use myna_engine::protocol::{
    AudioChunk, Command, DeviceKind, Event, JobId, ModelInfo, Precision, PrepareJob, SpeakJob, SpeakSettings,
    StageTimes, Stats,
};
use myna_engine::voice::{Voice, VoiceS3Gen, VoiceT3};
use myna_engine::{Engine, Variant};

/// Longest wait for another thread.
const PATIENCE: Duration = Duration::from_secs(20);

/// A sound card that asks only when the test does.
#[derive(Clone, Default)]
pub struct Card {
    callback: Arc<Mutex<Option<Callback>>>,
    shared: Arc<Mutex<Option<Arc<Shared>>>>,
    pub absent: Arc<Mutex<bool>>,
}

struct Quiet;

impl Stream for Quiet {
    fn run(&self, _: bool) {}
}

impl Output for Card {
    fn lister(&self) -> ListDevices {
        Arc::new(|| vec![DeviceName { id: "fake:a".into(), name: "Loudspeaker".into() }])
    }

    fn open(
        &mut self,
        id: Option<&str>,
        shared: &Arc<Shared>,
        make: &mut dyn FnMut(u32) -> Callback,
    ) -> Result<Opened> {
        if *self.absent.lock().unwrap() {
            bail!("this system has no sound device");
        }
        *self.callback.lock().unwrap() = Some(make(24_000));
        *self.shared.lock().unwrap() = Some(shared.clone());
        let name = if id.is_some() { "Loudspeaker" } else { "Headphones" };
        Ok(Opened { rate_hz: 24_000, name: name.into(), stream: Box::new(Quiet) })
    }
}

impl Card {
    /// Pulls the plug.
    pub fn unplug(&self) {
        *self.absent.lock().unwrap() = true;
        self.shared.lock().unwrap().take().expect("an open device").report(Fault::Lost);
    }

    /// Has the card ask for `n` frames.
    pub fn ask(&self, n: usize) -> Vec<f32> {
        let mut out = vec![0.0; n];
        if let Some(callback) = self.callback.lock().unwrap().as_mut() {
            callback.render(&mut out, 1);
        }
        out
    }
}

/// A microphone that hears a tone.
#[derive(Default)]
pub struct Mic {
    pub absent: bool,
}

impl Microphone for Mic {
    fn open(&mut self, mut sink: rtrb::Producer<f32>) -> Result<(u32, Box<dyn Send>)> {
        if self.absent {
            bail!("this system has no microphone");
        }
        let (alive, dropped) = crossbeam_channel::bounded::<()>(0);
        std::thread::spawn(move || {
            let mut t = 0u32;
            while dropped.recv_timeout(Duration::from_millis(5)) == Err(crossbeam_channel::RecvTimeoutError::Timeout) {
                for _ in 0..160 {
                    let _ = sink.push((t as f32 * 0.05).sin() * 0.4);
                    t += 1;
                }
            }
        });
        Ok((16_000, Box::new(alive)))
    }
}

/// Dialogs that answer at once with what the test put there.
#[derive(Clone, Default)]
pub struct Answers {
    pub next: Arc<Mutex<VecDeque<Option<PathBuf>>>>,
    pub asked: Arc<Mutex<Vec<String>>>,
}

impl Answers {
    fn answer(&self, question: String, reply: Reply) {
        self.asked.lock().unwrap().push(question);
        let answer = self.next.lock().unwrap().pop_front().flatten();
        reply(answer);
    }
}

impl Dialogs for Answers {
    fn open_clip(&self, reply: Reply) {
        self.answer("clip".into(), reply);
    }

    fn model_folder(&self, reply: Reply) {
        self.answer("model".into(), reply);
    }

    fn save(&self, _: Option<PathBuf>, name: String, reply: Reply) {
        self.answer(format!("save {name}"), reply);
    }

    fn save_folder(&self, _: Option<PathBuf>, reply: Reply) {
        self.answer("folder".into(), reply);
    }
}

/// The window and everything around it.
pub struct Stage {
    pub window: Harness<'static, App>,
    pub commands: Receiver<Command>,
    pub events: Sender<Event>,
    pub card: Card,
    pub mic: Arc<Mutex<Mic>>,
    pub answers: Answers,
}

/// How the stage is set.
pub struct Setting {
    pub size: [f32; 2],
    pub file: Option<SettingsFile>,
    pub card: Card,
    pub recordings: Option<PathBuf>,
    pub offers: Offers,
    pub comparer: Comparer,
    pub models: Option<PathBuf>,
    pub hub: Hub,
}

impl Default for Setting {
    fn default() -> Self {
        // Pictures do not depend on what a build can do.
        let offers = Offers { precisions: vec![Precision::F32], devices: vec![DeviceKind::Cpu] };
        Self {
            size: [1240.0, 780.0],
            file: None,
            card: Card::default(),
            recordings: None,
            offers,
            comparer: Arc::new(comparison::compare),
            models: None,
            hub: Hub::at("http://127.0.0.1:1"),
        }
    }
}

impl Stage {
    pub fn new() -> Self {
        Self::with(Setting::default())
    }

    pub fn with(setting: Setting) -> Self {
        let (commands_in, commands) = unbounded();
        let (events, events_out) = unbounded();
        let mic = Arc::new(Mutex::new(Mic::default()));
        let (card, answers) = (setting.card, Answers::default());
        let parts = Parts {
            engine: Engine { commands: commands_in, events: events_out },
            output: Box::new(card.clone()),
            microphone: mic.clone(),
            dialogs: Box::new(answers.clone()),
            settings: setting.file,
            recordings: setting.recordings,
            comparer: setting.comparer,
            models: setting.models,
            hub: setting.hub,
            offers: setting.offers,
            started: Instant::now(),
        };
        let window = Harness::builder()
            .with_size(setting.size)
            .with_max_steps(64)
            .wgpu()
            .build_eframe(move |cc| App::new(&cc.egui_ctx, parts).unwrap());
        Self { window, commands, events, card, mic, answers }
    }

    /// Lets the window see what happened.
    pub fn look(&mut self) {
        self.window.run_steps(3);
    }

    /// Lets time pass until something is so.
    pub fn until(&mut self, what: &str, so: impl Fn(&App) -> bool) {
        let begun = Instant::now();
        while !so(self.window.state()) {
            assert!(begun.elapsed() < PATIENCE, "waited in vain for: {what}\n{:#?}", self.window.state().state().job);
            self.window.step();
            std::thread::sleep(Duration::from_millis(2));
        }
        self.look();
    }

    /// The next command that the engine gets and has to answer.
    pub fn command(&mut self) -> Command {
        let begun = Instant::now();
        loop {
            match self.commands.try_recv() {
                Ok(Command::Warm(_)) => continue,
                Ok(command) => return command,
                Err(_) => {}
            }
            assert!(begun.elapsed() < PATIENCE, "the engine is told nothing");
            self.window.step();
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn told_load(&mut self) {
        assert!(matches!(self.command(), Command::Load(_)));
    }

    pub fn told_prepare(&mut self) -> PrepareJob {
        match self.command() {
            Command::Prepare(job) => job,
            other => panic!("not a Prepare: {other:?}"),
        }
    }

    pub fn told_speak(&mut self) -> SpeakJob {
        match self.command() {
            Command::Speak(job) => job,
            other => panic!("not a Speak: {other:?}"),
        }
    }

    pub fn tell(&mut self, event: Event) {
        self.events.send(event).unwrap();
    }

    /// Loads a model of this kind and learns the chosen voice.
    pub fn ready_with(mut self, info: ModelInfo) -> Self {
        self.told_load();
        self.tell(Event::Loaded(Box::new(info)));
        let job = self.told_prepare();
        self.tell(Event::VoiceReady { job: job.id, voice: voice(&job.name), ms: 84.0 });
        self.until("the voice", |app| matches!(app.state().voice, myna::state::VoiceState::Ready { .. }));
        self.until("the report", |app| app.state().clip().is_some_and(|clip| clip.report.is_some()));
        self
    }

    pub fn ready(self) -> Self {
        self.ready_with(embedded())
    }

    /// Types a text and speaks it.
    pub fn speak(&mut self, text: &str) -> SpeakJob {
        use egui_kittest::kittest::Queryable;
        self.window.get_by_label("Text to speak").focus();
        self.look();
        self.window.get_by_label("Text to speak").type_text(text);
        self.look();
        self.window.key_press_modifiers(eframe::egui::Modifiers::COMMAND, eframe::egui::Key::Enter);
        self.look();
        let job = self.told_speak();
        self.tell(Event::Started { job: job.id });
        job
    }

    /// Speaks a text to its end.
    pub fn spoken(&mut self, text: &str, secs: f32) -> JobId {
        let job = self.speak(text);
        for chunk in sentences(secs, 2) {
            job.audio.send(chunk).unwrap();
        }
        self.tell(Event::Finished { job: job.id, stats: stats(f64::from(secs), 2) });
        let id = job.id;
        drop(job);
        self.until("the end", |app| matches!(app.state().job, myna::state::JobState::Done(_)));
        self.until("the take", |app| app.state().take.as_ref().is_some_and(|take| take.is_complete()));
        id
    }
}

/// The small model inside the program.
pub fn embedded() -> ModelInfo {
    ModelInfo {
        variant: Variant::English,
        title: "Myna embedded".into(),
        embedded: true,
        precision: Precision::F32,
        device: "CPU, 2 threads, AVX-512".into(),
        threads: 2,
        languages: Vec::new(),
        tags: Vec::new(),
        defaults: SpeakSettings { steps: 2, ..SpeakSettings::default() },
        builtin_voice: None,
        reference_secs: (6.0, 10.0),
        model_hash: "cafe".into(),
        load_ms: 412.0,
        disk_bytes: 41_000_000,
    }
}

/// A model with languages.
pub fn multilingual() -> ModelInfo {
    let languages = ["de", "en", "fr", "ja"].map(str::to_owned).to_vec();
    ModelInfo {
        variant: Variant::MultilingualV3,
        title: "Chatterbox Multilingual v3".into(),
        embedded: false,
        languages,
        ..embedded()
    }
}

/// A model with tags and without guidance.
pub fn turbo() -> ModelInfo {
    let tags = ["[laugh]", "[cough]", "[sigh]"].map(str::to_owned).to_vec();
    ModelInfo {
        variant: Variant::Turbo,
        title: "Chatterbox Turbo".into(),
        embedded: false,
        tags,
        reference_secs: (15.0, 10.0),
        ..embedded()
    }
}

pub fn voice(name: &str) -> Arc<Voice> {
    Arc::new(Voice {
        name: name.into(),
        t3: VoiceT3 { speaker_emb: vec![0.5; 4], prompt_tokens: vec![1, 2] },
        s3gen: VoiceS3Gen { prompt_token: vec![3], prompt_feat: vec![0.0; 160], x_vector: vec![0.1; 4] },
    })
}

pub fn stats(audio_secs: f64, sentences: usize) -> Stats {
    let work = audio_secs * 310.0;
    Stats {
        audio_secs,
        rtf: 0.31,
        ttfa_ms: 78.0,
        tokens: (audio_secs * 25.0) as usize,
        tokens_per_sec: 143.0,
        stages: StageTimes {
            voice: 0.0,
            prefill: 22.0,
            t3: work * 0.5,
            flow: work * 0.25,
            vocoder: work * 0.15,
            watermark: work * 0.05,
        },
        first_stages: StageTimes::default(),
        sentences_done: sentences.saturating_sub(1),
        sentences,
        wall_ms: work,
    }
}

/// Something that looks like speech, in chunks of 0.4 s.
pub fn sentences(secs: f32, sentences: usize) -> Vec<AudioChunk> {
    let n = (secs * 24_000.0).round() as usize;
    let sound: Vec<f32> = (0..n)
        .map(|i| {
            let t = i as f32 / 24_000.0;
            let syllable = (t * 4.3 * std::f32::consts::PI).sin().abs() * (0.6 + 0.4 * (t * 1.7).sin());
            let pause = if (t * 0.55).fract() > 0.9 { 0.02 } else { 1.0 };
            0.55 * syllable * pause * (t * 160.0 * std::f32::consts::TAU).sin()
        })
        .collect();
    let per = n.div_ceil(sentences);
    sound
        .chunks(9600)
        .enumerate()
        .map(|(i, samples)| {
            let sentence = i * 9600 / per;
            AudioChunk { samples: samples.to_vec(), sentence, text_range: sentence * 10..sentence * 10 + 10 }
        })
        .collect()
}
