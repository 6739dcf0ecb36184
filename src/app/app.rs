//! The application: [`App::logic`] takes in what happened, [`App::ui`] paints and carries out what was asked for.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use crossbeam_channel::{Receiver, Sender, unbounded};
use eframe::egui::{
    Align2, CentralPanel, Context, Frame, Id, LayerId, Margin, Order, Panel, Stroke, StrokeKind, ThemePreference, Ui,
    ViewportBuilder,
};
use myna_engine::Engine;
use myna_engine::protocol::{CancelToken, ModelInfo, SpeakSettings};
use myna_engine::voice::Voice;
use tracing_subscriber::EnvFilter;

use crate::action::Action;
use crate::comparison::{self, Comparer};
use crate::dialogs::{Dialogs, SystemDialogs};
use crate::download::{self, Hub};
use crate::engine_link::EngineLink;
use crate::frame_times::{self, FrameTimes, variant_name};
use crate::library::ClipId;
use crate::panels;
use crate::player::{Output, PlayState, Player, SystemOutput, Wake};
use crate::recorder::{Microphone, Recorder, SystemMicrophone};
use crate::settings_file::SettingsFile;
use crate::state::{Offers, OnDeck, Releases, State, ThemeChoice};
use crate::theme::{self, MARGIN, SCROLL_MARGIN};

mod act;
mod compare;
mod fetch;
mod inbox;
mod shortcuts;
mod tempo;

use inbox::Inbound;
use tempo::{Business, Tempo};

/// Settings are written at most this often.
const SAVE_EVERY: Duration = Duration::from_secs(3);

/// What the application is made of; tests hand in their own.
pub struct Parts {
    /// The engine's thread.
    pub engine: Engine,
    /// Where sound goes.
    pub output: Box<dyn Output>,
    /// Where recordings come from.
    pub microphone: Arc<Mutex<dyn Microphone>>,
    /// How files are asked for.
    pub dialogs: Box<dyn Dialogs>,
    /// Where settings are kept, if anywhere.
    pub settings: Option<SettingsFile>,
    /// Folder in which recordings are kept, if any.
    pub recordings: Option<PathBuf>,
    /// How two settings are compared.
    pub comparer: Comparer,
    /// Folder of the released models that were fetched, if this system has a place for them.
    pub models: Option<PathBuf>,
    /// Where released models come from.
    pub hub: Hub,
    /// What the engine of this build can do.
    pub offers: Offers,
    /// When the program began.
    pub started: Instant,
}

impl Parts {
    /// The real ones, around an engine.
    pub fn of_system(engine: Engine, started: Instant) -> Self {
        Self {
            engine,
            comparer: Arc::new(comparison::compare),
            models: download::models_folder(),
            hub: Hub::of_system(),
            offers: Offers::of_engine(),
            started,
            output: Box::new(SystemOutput),
            microphone: Arc::new(Mutex::new(SystemMicrophone)),
            dialogs: Box::new(SystemDialogs),
            settings: SettingsFile::of_system(),
            recordings: directories::ProjectDirs::from("", "", "myna").map(|dirs| dirs.data_dir().join("recordings")),
        }
    }
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Which voice was made of which part of which clip, by which model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct VoiceKey {
    clip: ClipId,
    from_ms: u32,
    to_ms: u32,
    model: String,
}

/// Where a take comes from.
#[derive(Debug, Clone)]
struct TakeSource {
    model: Arc<ModelInfo>,
    voice: Arc<Voice>,
    settings: SpeakSettings,
}

/// The application.
pub struct App {
    state: State,
    link: EngineLink,
    player: Player,
    recorder: Option<Recorder>,
    microphone: Arc<Mutex<dyn Microphone>>,
    dialogs: Box<dyn Dialogs>,
    file: Option<SettingsFile>,
    recordings: Option<PathBuf>,
    written: crate::state::Settings,
    write_at: Option<Instant>,
    inbox: Receiver<Inbound>,
    post: Post,
    voices: HashMap<VoiceKey, Arc<Voice>>,
    /// The voice being prepared.
    preparing: Option<VoiceKey>,
    /// Where the take comes from, for its file.
    source: Option<TakeSource>,
    /// The clip that is about to be listened to.
    listening: Option<ClipId>,
    /// A wish to speak that waits for the voice, and when it was made.
    wish: Option<Instant>,
    comparer: Comparer,
    comparing: Option<compare::Comparing>,
    hub: Hub,
    /// How to stop fetching a model.
    fetching: Option<CancelToken>,
    themed: Option<ThemeChoice>,
    tempo: Tempo,
    frames: FrameTimes,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("state", &self.state).finish_non_exhaustive()
    }
}

/// How other threads tell the window something.
#[derive(Clone)]
struct Post {
    sender: Sender<Inbound>,
    wake: Wake,
}

impl Post {
    fn send(&self, inbound: Inbound) {
        if self.sender.send(inbound).is_ok() {
            (self.wake)();
        }
    }

    /// Does something on another thread and posts what comes of it.
    fn work(&self, name: &str, job: impl FnOnce() -> Inbound + Send + 'static) {
        let post = self.clone();
        let begun = std::thread::Builder::new().name(name.to_owned()).spawn(move || post.send(job()));
        if let Err(error) = begun {
            tracing::error!(%error, name, "no thread");
        }
    }
}

impl App {
    /// Starts everything that runs beside the window, and begins to load the model.
    ///
    /// # Errors
    /// If no threads can be had.
    pub fn new(ctx: &Context, parts: Parts) -> Result<Self> {
        theme::install(ctx);
        let (sender, inbox) = unbounded();
        let tempo = Tempo::default();
        let (woken, pause) = (ctx.clone(), tempo.pause.clone());
        let wake: Wake = Arc::new(move || woken.request_repaint_after(pause.get()));
        let post = Post { sender, wake: Arc::clone(&wake) };
        let events = post.clone();
        let link = EngineLink::new(parts.engine, move |event| events.send(Inbound::Engine(event)))
            .context("no thread for the engine's events")?;
        let (settings, remark) = parts.settings.as_ref().map_or_else(Default::default, SettingsFile::load);
        let player = Player::new(parts.output, settings.output.clone(), settings.volume, wake)
            .context("no thread for the player")?;
        let mut app = Self {
            state: State {
                offers: parts.offers,
                focus_editor: true,
                releases: Releases { folder: parts.models, ..Releases::default() },
                ..State::default()
            },
            link,
            player,
            recorder: None,
            microphone: parts.microphone,
            dialogs: parts.dialogs,
            file: parts.settings,
            recordings: parts.recordings,
            written: settings.clone(),
            write_at: None,
            inbox,
            post,
            voices: HashMap::new(),
            preparing: None,
            source: None,
            listening: None,
            wish: None,
            comparer: parts.comparer,
            comparing: None,
            hub: parts.hub,
            fetching: None,
            themed: None,
            tempo,
            frames: FrameTimes::since(parts.started),
        };
        app.restore(settings, remark);
        Ok(app)
    }

    /// What is shown, for tests.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Takes in what happened since the last frame.
    pub fn logic(&mut self, ctx: &Context) {
        if self.themed != Some(self.state.settings.theme) {
            self.themed = Some(self.state.settings.theme);
            ctx.set_theme(match self.state.settings.theme {
                ThemeChoice::System => ThemePreference::System,
                ThemeChoice::Light => ThemePreference::Light,
                ThemeChoice::Dark => ThemePreference::Dark,
            });
        }
        self.look_at_player();
        if let Some(recorder) = &self.recorder {
            self.state.recorder = recorder.status();
        }
        while let Ok(inbound) = self.inbox.try_recv() {
            let name = match &inbound {
                Inbound::Engine(event) => variant_name(event),
                other => variant_name(other),
            };
            let begun = Instant::now();
            self.receive(inbound);
            self.frames.call(&name, begun.elapsed());
        }
        self.take_drops(ctx);
        self.remember(ctx);
        let business = self.business();
        self.tempo.set(business);
        if business != Business::Idle {
            ctx.request_repaint_after(self.tempo.pause.get());
        }
    }

    fn business(&self) -> Business {
        let silent = || self.state.take.as_ref().is_none_or(|take| take.is_empty());
        match self.state.player.state {
            _ if self.comparing.is_some() => Business::Making,
            _ if self.state.job.is_busy() => {
                if silent() {
                    Business::Waiting
                } else {
                    Business::Making
                }
            }
            PlayState::Playing | PlayState::Buffering => Business::Playing,
            _ => Business::Idle,
        }
    }

    fn take_drops(&mut self, ctx: &Context) {
        let files = ctx.input(|input| input.raw.dropped_files.iter().map(|f| f.path().to_owned()).collect::<Vec<_>>());
        if !files.is_empty() {
            self.act(Action::DropFiles(files), Instant::now());
        }
        self.state.dragging_files = ctx.input(|input| !input.raw.hovered_files.is_empty());
    }

    fn look_at_player(&mut self) {
        let before = std::mem::replace(&mut self.state.player, self.player.status());
        let now = &self.state.player;
        // A quick engine may have sounded again before the window looked.
        if let Some(wait) = now.first_audio.filter(|wait| before.first_audio != Some(*wait)) {
            tracing::info!(ms = wait.as_secs_f32() * 1e3, "first sound");
        }
        if before.state != now.state && now.state == PlayState::Ended {
            tracing::info!(underruns = now.underruns, "heard to the end");
        }
        if self.state.on_deck == OnDeck::Speech {
            self.state.take_player = self.state.player.clone();
        }
    }

    /// Paints the window and carries out what was asked for.
    pub fn ui(&mut self, ui: &mut Ui) {
        let pressed = Instant::now();
        let mut actions = Vec::new();
        self.shortcuts(ui, &mut actions);
        self.paint(ui, &mut actions);
        let asked = !actions.is_empty();
        for action in actions {
            let (name, begun) = (variant_name(&action), Instant::now());
            self.act(action, pressed);
            self.frames.call(&name, begun.elapsed());
        }
        if asked {
            self.tempo.set(self.business());
            ui.ctx().request_repaint_after(self.tempo.pause.get());
        }
    }

    fn paint(&mut self, ui: &mut Ui, actions: &mut Vec<Action>) {
        let p = theme::palette(ui);
        let settings_shown = self.state.shows_settings(ui.available_width());
        let panel = Frame::new().fill(p.panel).inner_margin(Margin::same(MARGIN));
        let side = panel.inner_margin(Margin { right: MARGIN - SCROLL_MARGIN, ..Margin::same(MARGIN) });
        let bar = Frame::new().fill(p.panel);
        let (state, frames) = (&mut self.state, &mut self.frames);
        Panel::top("top").exact_size(theme::TOP_BAR).frame(bar).show(ui, |ui| {
            timed(frames, "top bar", || panels::top(ui, state, settings_shown, actions));
        });
        Panel::bottom("deck").exact_size(theme::player_panel(ui.available_height())).frame(panel).show(ui, |ui| {
            timed(frames, "deck", || panels::deck(ui, state, actions));
        });
        Panel::left("voice").exact_size(theme::VOICE_PANEL).resizable(false).frame(side).show(ui, |ui| {
            timed(frames, "voice panel", || panels::voice(ui, state, actions));
        });
        if settings_shown {
            Panel::right("settings").exact_size(theme::SETTINGS_PANEL).resizable(false).frame(side).show(ui, |ui| {
                timed(frames, "settings panel", || panels::settings(ui, state, actions));
            });
        }
        let ground = Frame::new().fill(p.ground).inner_margin(Margin::same(20));
        CentralPanel::no_frame().frame(ground).show(ui, |ui| {
            panels::notices(ui, state, actions);
            if state.compare.open {
                timed(frames, "comparison panel", || panels::compare(ui, state, actions));
            } else {
                timed(frames, "text panel", || panels::text(ui, state, actions));
            }
        });
        if self.state.dragging_files {
            drop_sign(ui);
        }
    }

    /// Writes the settings a while after they changed.
    fn remember(&mut self, ctx: &Context) {
        if let Some(rect) = ctx.input(|input| input.viewport().inner_rect) {
            self.state.settings.window = [rect.width().round(), rect.height().round()];
        }
        if self.state.settings == self.written {
            self.write_at = None;
            return;
        }
        let now = Instant::now();
        match self.write_at {
            None => {
                self.write_at = Some(now + SAVE_EVERY);
                ctx.request_repaint_after(SAVE_EVERY);
            }
            Some(at) if now >= at => {
                self.write_at = None;
                self.written = self.state.settings.clone();
                if let Some(file) = self.file.clone() {
                    let settings = self.written.clone();
                    self.post.work("settings", move || Inbound::Remembered(file.save(&settings)));
                }
            }
            Some(at) => ctx.request_repaint_after(at - now),
        }
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let file = self.file.as_ref().filter(|_| self.state.settings != self.written);
        if let Some(Err(error)) = file.map(|file| file.save(&self.state.settings)) {
            tracing::warn!(%error, "settings could not be written");
        }
    }
}

impl eframe::App for App {
    fn logic(&mut self, ctx: &Context, frame: &mut eframe::Frame) {
        let computing = frame.info().cpu_usage.map_or(Duration::ZERO, |secs| Duration::from_secs_f32(secs.max(0.0)));
        self.tempo.begin(frame.gl().map(Arc::as_ref), computing);
        let begun = Instant::now();
        Self::logic(self, ctx);
        self.frames.work(begun.elapsed());
    }

    fn ui(&mut self, ui: &mut Ui, _frame: &mut eframe::Frame) {
        let begun = Instant::now();
        Self::ui(self, ui);
        self.frames.work(begun.elapsed());
        self.frames.end(self.tempo.drawing(), self.state.job.is_busy());
        let (business, player) = (self.business(), &self.player);
        self.tempo.end(business, || player.status().state == PlayState::Playing);
    }

    fn on_exit(&mut self, _gl: Option<&eframe::glow::Context>) {
        self.link.cancel_speak();
        self.cancel_comparison();
        self.stop_fetching();
        let summary = self.frames.summary();
        tracing::info!(?summary, longest_call = ?self.frames.longest_call(), "time of the window's thread per frame");
        let written = std::env::var_os(frame_times::FILE).map(|path| self.frames.write(path.as_ref()));
        if let Some(Err(error)) = written {
            tracing::error!(%error, "frame times could not be written");
        }
    }
}

/// Paints a panel and notes how long that took.
fn timed(frames: &mut FrameTimes, name: &str, paint: impl FnOnce()) {
    let begun = Instant::now();
    paint();
    frames.call(name, begun.elapsed());
}

/// Says over everything that files can be let go here.
fn drop_sign(ui: &Ui) {
    let p = theme::palette(ui);
    let painter = ui.ctx().layer_painter(LayerId::new(Order::Foreground, Id::unique("drop")));
    let rect = ui.ctx().content_rect();
    painter.rect_filled(rect, 0.0, p.ground.gamma_multiply(0.85));
    painter.rect_stroke(rect.shrink(12.0), 12.0, Stroke::new(2.0, p.accent), StrokeKind::Inside);
    painter.text(rect.center(), Align2::CENTER_CENTER, "Drop a clip to use its voice", theme::semibold(20.0), p.text);
}

/// Warnings go to standard error; `RUST_LOG=info` shows more.
fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("error,myna=warn"));
    // Whoever has set up a log before has one already.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}

/// Starts the engine and opens the window on it.
///
/// # Errors
/// If there is no display to open a window on.
pub fn open() -> Result<()> {
    let started = Instant::now();
    log_to_stderr();
    run(Engine::spawn(|| ())?, started)
}

/// Opens the window on an engine and stays until it is closed; `started` is when the program began.
///
/// # Errors
/// If there is no display to open a window on.
pub fn run(engine: Engine, started: Instant) -> Result<()> {
    let parts = Parts::of_system(engine, started);
    let size = parts.settings.as_ref().map_or_else(Default::default, SettingsFile::peek).window;
    let viewport = ViewportBuilder::default()
        .with_title("Myna")
        .with_app_id("myna")
        .with_inner_size(size)
        .with_min_inner_size(theme::MIN_WINDOW)
        .with_drag_and_drop(true);
    // The tests bring another renderer into the build, which eframe would prefer.
    let renderer = eframe::Renderer::Glow;
    let options = eframe::NativeOptions { viewport, renderer, dithering: false, ..eframe::NativeOptions::default() };
    let create: eframe::AppCreator<'_> = Box::new(move |cc| Ok(Box::new(App::new(&cc.egui_ctx, parts)?)));
    eframe::run_native("myna", options, create)
        .map_err(|error| anyhow::anyhow!("{error}"))
        .context("the window cannot be opened; `myna say` works without one")
}
