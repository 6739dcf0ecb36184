//! Comparing two settings: made on a thread of its own with models of its own, listened to through the player.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use myna_engine::Error;
use myna_engine::protocol::{CancelToken, SpeakSettings};

use super::App;
use super::act::fresh_seed;
use super::inbox::Inbound;
use crate::comparison::{Abx, Compared, Heard, SideModel, Wish, Work};
use crate::library::{self, Origin};
use crate::state::{ModelState, OnDeck, Tone};

/// Measured takes of each side: the window does not keep people waiting for a better median.
const RUNS: u32 = 2;

/// A comparison that is being made, or about to be.
pub(super) struct Comparing {
    /// How it is stopped.
    cancel: CancelToken,
    /// The work, which waits until the engine has let go of its model.
    begin: Option<Box<dyn FnOnce() -> Inbound + Send>>,
}

impl App {
    pub(super) fn show_comparison(&mut self, shown: bool) {
        self.state.compare.open = shown;
        self.state.focus_editor = !shown;
        self.put_on_deck();
    }

    pub(super) fn choose_comparison_model(&mut self, side: usize) {
        let reply = self.reply(move |path| Inbound::SideModelChosen(side, path));
        self.dialogs.model_folder(reply);
    }

    pub(super) fn side_model_chosen(&mut self, side: usize, path: PathBuf) {
        if let Some(choice) = self.state.settings.compare.get_mut(side) {
            choice.model = SideModel::Folder(path);
        }
    }

    /// Makes both takes. The model of the window makes room for them and comes back behind.
    pub(super) fn compare(&mut self) {
        if self.comparing.is_some() || self.state.obstacle().is_some() {
            return;
        }
        let (Some(clip), Some(info)) = (self.state.clip(), self.state.model.info().cloned()) else { return };
        let (name, trim, origin, sound) =
            (clip.name.clone(), clip.trim.clone(), clip.origin.clone(), clip.sound().cloned());
        if sound.is_none() && !matches!(origin, Origin::Model(_)) {
            return;
        }
        self.stop();
        if !self.state.settings.seed_locked {
            self.set_speak(|own| own.seed = fresh_seed());
        }
        let (own, title) = (self.state.speak(), info.title.clone());
        let text = self.state.settings.text.clone();
        let source = self.state.settings.source();
        for side in &mut self.state.settings.compare {
            self.state.offers.fit(&mut side.precision, &mut side.device);
        }
        let [a, b] = &self.state.settings.compare;
        let sides = [a.wish(b, source.clone()), b.wish(a, source)];
        if let Err(gone) = self.link.unload() {
            self.state.model = ModelState::Failed(gone.to_string());
            return;
        }
        self.state.compare.work = Work::Running { fraction: 0.0, what: String::new() };
        self.state.compare.test = None;
        self.state.compare.heard = Heard::A;
        self.state.notices.retain(|notice| notice.tone == Tone::Good);
        self.put_on_deck();
        self.state.model = ModelState::Aside(info);
        let cancel = CancelToken::default();
        let (compare, post, stop) = (self.comparer.clone(), self.post.clone(), cancel.clone());
        let begin = move || {
            let settings = |info: &myna_engine::protocol::ModelInfo| {
                if title == info.title {
                    return own.clone();
                }
                SpeakSettings { seed: own.seed, language: own.language.clone(), ..info.defaults.clone() }
            };
            let part = sound.map(|sound| library::cut(&sound, &trim));
            let voice = |model: &myna_engine::model::Model| match (&origin, &part) {
                (Origin::Model(voice), _) => Ok(voice.clone()),
                (_, Some(part)) => {
                    let trace = myna_engine::trace::Trace::off();
                    Ok(Arc::new(model.prepare_voice(part, &name, &cancel, &trace)?))
                }
                (_, None) => Err(Error::input("the clip of this voice is not there").into()),
            };
            let wish =
                Wish { text: &text, sides, runs: RUNS, settings: &settings, voice: &voice, cancel: cancel.clone() };
            let made = compare(&wish, &mut |fraction, what| post.send(Inbound::Comparing(fraction, what)));
            Inbound::Compared(made.map(|comparison| Arc::new(comparison.into())))
        };
        self.comparing = Some(Comparing { cancel: stop, begin: Some(Box::new(begin)) });
    }

    /// The engine has let go of its model: there is room now. Whether that is what it was asked for.
    pub(super) fn begin_comparison(&mut self) -> bool {
        let Some(comparing) = &mut self.comparing else { return false };
        if let Some(begin) = comparing.begin.take() {
            self.post.work("comparison", begin);
        }
        true
    }

    /// Gives the comparison up that is being made; its thread says when it has let go of its models.
    pub(super) fn cancel_comparison(&mut self) {
        if let Some(comparing) = &self.comparing {
            comparing.cancel.cancel();
            self.state.compare.work = Work::None;
        }
    }

    pub(super) fn comparing(&mut self, fraction: f32, what: String) {
        if let Work::Running { fraction: shown, what: words } = &mut self.state.compare.work {
            (*shown, *words) = (fraction, what);
        }
    }

    pub(super) fn compared(&mut self, made: Result<Arc<Compared>>) {
        let cancelled = self.comparing.take().is_some_and(|comparing| comparing.cancel.is_cancelled());
        match made {
            _ if cancelled => {}
            Ok(compared) => {
                tracing::info!(agreement = compared.comparison.report.token_agreement, "compared");
                self.state.compare.work = Work::Done(compared);
                self.put_on_deck();
                if self.state.on_deck == OnDeck::Comparison {
                    self.hear_side(Heard::A);
                    self.player.play();
                }
            }
            Err(error) => self.state.compare.work = Work::Failed(format!("{error:#}")),
        }
        self.load_model();
    }

    pub(super) fn hear_side(&mut self, heard: Heard) {
        let view = &mut self.state.compare;
        view.heard = if heard == Heard::X && !view.is_testing() { Heard::A } else { heard };
        self.player.hear_second(view.hears_second());
    }

    pub(super) fn begin_test(&mut self, trials: usize) {
        if self.state.compare.done().is_some() {
            self.state.compare.test = Some(Abx::new(trials, fresh_seed()));
            self.hear_side(Heard::X);
        }
    }

    /// Takes an answer; the next X is listened to from the start.
    pub(super) fn answer_test(&mut self, x_is_b: bool) {
        let Some(test) = &mut self.state.compare.test else { return };
        test.answer(x_is_b);
        let over = test.is_over();
        self.put_on_deck();
        self.player.seek(0.0);
        self.hear_side(if over { Heard::A } else { Heard::X });
        if over {
            self.player.pause();
        } else {
            self.player.play();
        }
    }

    pub(super) fn end_test(&mut self) {
        self.state.compare.test = None;
        self.hear_side(Heard::A);
    }

    pub(super) fn ask_where_to_save_comparison(&mut self) {
        if self.state.compare.done().is_some() && !self.state.saving {
            let folder = self.state.settings.save_folder.clone();
            self.dialogs.save_folder(folder, self.reply(Inbound::ComparisonPlaceChosen));
        }
    }

    pub(super) fn save_comparison(&mut self, folder: PathBuf) {
        let Some(compared) = self.state.compare.done().cloned() else { return };
        let test = self.state.compare.test.clone();
        self.state.settings.save_folder = Some(folder.clone());
        self.state.saving = true;
        self.post.work("saver", move || {
            let done = compared.comparison.write(&folder, test.as_ref());
            Inbound::Saved(folder, done)
        });
    }
}
