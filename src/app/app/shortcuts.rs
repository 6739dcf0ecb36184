//! What keys ask for, wherever the pointer is.

use eframe::egui::{Key, KeyboardShortcut, Modifiers, Popup, Ui, ViewportCommand};

use super::App;
use crate::action::Action;
use crate::comparison::Heard;

impl App {
    pub(super) fn shortcuts(&self, ui: &Ui, actions: &mut Vec<Action>) {
        let shortcut = |modifiers, key| KeyboardShortcut::new(modifiers, key);
        let ctx = ui.ctx();
        let popup = Popup::is_any_open(ctx);
        let focused = ctx.memory(|memory| memory.focused());
        let writing = ctx.text_edit_focused();
        let (comparing, compared) = (self.state.compare.open, self.state.shows_comparison());
        if ctx.input_mut(|input| input.consume_shortcut(&shortcut(Modifiers::COMMAND, Key::Q))) {
            ctx.send_viewport_cmd(ViewportCommand::Close);
        }
        ctx.input_mut(|input| {
            if input.consume_shortcut(&shortcut(Modifiers::COMMAND, Key::Enter)) {
                actions.push(if comparing { Action::Compare } else { Action::Speak });
            }
            if input.consume_shortcut(&shortcut(Modifiers::COMMAND, Key::S)) {
                actions.push(if compared { Action::SaveComparison } else { Action::Save });
            }
            if input.consume_shortcut(&shortcut(Modifiers::COMMAND, Key::B)) {
                actions.push(Action::ShowComparison(!comparing));
            }
            if input.consume_shortcut(&shortcut(Modifiers::COMMAND, Key::R)) {
                actions.push(if self.recorder.is_some() { Action::FinishRecording } else { Action::Record });
            }
            if input.consume_shortcut(&shortcut(Modifiers::COMMAND, Key::O)) {
                actions.push(Action::OpenClip);
            }
            if !popup && input.key_pressed(Key::Escape) {
                actions.push(Action::Stop);
            }
            if !popup && focused.is_none() && input.consume_shortcut(&shortcut(Modifiers::NONE, Key::Space)) {
                actions.push(Action::TogglePlay);
            }
            if compared && !popup && !writing {
                for (key, heard) in [(Key::A, Heard::A), (Key::B, Heard::B), (Key::X, Heard::X)] {
                    if input.consume_shortcut(&shortcut(Modifiers::NONE, key)) {
                        actions.push(Action::Hear(heard));
                    }
                }
            }
        });
    }
}
