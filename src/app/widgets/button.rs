//! Buttons: one loud, the rest quiet.

use eframe::egui::style::WidgetVisuals;
use eframe::egui::{
    Align2, Color32, ComboBox, CornerRadius, FontId, Rect, Response, Role, Sense, Stroke, StrokeKind, TextWrapMode, Ui,
    WidgetInfo, WidgetText, pos2, vec2,
};

use super::icon::Icon;
use crate::theme::{self, CONTROL, RADIUS, palette};

/// Colours of a button at rest, under the pointer, and its text.
struct Coat {
    fill: Color32,
    hover: Color32,
    text: Color32,
    line: Color32,
}

/// Size of a button's parts.
struct Cut {
    font: FontId,
    height: f32,
    pad: f32,
}

/// The one button that matters most. Its text, an icon, and a hint in smaller letters.
pub fn primary_button(ui: &mut Ui, icon: Icon, label: &str, hint: &str, enabled: bool) -> Response {
    let p = palette(ui);
    let coat = if enabled {
        Coat { fill: p.accent, hover: p.accent_hover, text: p.on_accent, line: Color32::TRANSPARENT }
    } else {
        Coat { fill: p.accent_soft, hover: p.accent_soft, text: p.accent_text, line: Color32::TRANSPARENT }
    };
    let cut = Cut { font: theme::semibold(14.5), height: 40.0, pad: 20.0 };
    let response = ui.add_enabled_ui(enabled, |ui| paint(ui, Some(icon), label, &coat, cut));
    tip(response.inner, hint)
}

/// A button with words.
pub fn quiet_button(ui: &mut Ui, icon: Option<Icon>, label: &str, enabled: bool) -> Response {
    let p = palette(ui);
    let coat = Coat { fill: p.raised, hover: p.hover, text: p.text, line: p.line };
    let cut = Cut { font: theme::body(), height: CONTROL, pad: 10.0 };
    ui.add_enabled_ui(enabled, |ui| paint(ui, icon, label, &coat, cut)).inner
}

/// A small word that can be put into the text or switched.
pub fn chip(ui: &mut Ui, label: &str, selected: bool) -> Response {
    switched(ui, label, selected, Cut { font: theme::caption(), height: 24.0, pad: 8.0 })
}

/// One of several things, of which one is on.
pub fn toggle(ui: &mut Ui, label: &str, selected: bool) -> Response {
    switched(ui, label, selected, Cut { font: theme::semibold(13.5), height: CONTROL, pad: 16.0 })
}

fn switched(ui: &mut Ui, label: &str, selected: bool, cut: Cut) -> Response {
    let p = palette(ui);
    let coat = if selected {
        Coat { fill: p.accent_soft, hover: p.accent_soft, text: p.accent_text, line: p.accent_soft }
    } else {
        Coat { fill: Color32::TRANSPARENT, hover: p.hover, text: p.weak, line: p.line }
    };
    paint(ui, None, label, &coat, cut)
}

/// A button with nothing but an icon; `label` is what it does, for the tip and for screen readers.
pub fn icon_button(ui: &mut Ui, icon: Icon, label: &str, enabled: bool) -> Response {
    let response = ui.add_enabled_ui(enabled, |ui| {
        let (rect, response) = ui.allocate_exact_size(vec2(CONTROL, CONTROL), Sense::click());
        let enabled = ui.is_enabled();
        response.widget_info(|| WidgetInfo::labeled(Role::Button, enabled, label));
        let p = palette(ui);
        if response.hovered() || response.is_pointer_button_down_on() {
            ui.painter().rect_filled(rect, RADIUS, p.hover);
        }
        focus_ring(ui, &response, RADIUS);
        icon.paint(ui.painter(), rect, p.text);
        response
    });
    tip(response.inner, label)
}

/// The title of a group that can be folded away.
pub fn fold(ui: &mut Ui, title: &str, open: bool) -> Response {
    let (rect, response) = ui.allocate_exact_size(vec2(ui.available_width(), CONTROL), Sense::click());
    response.widget_info(|| WidgetInfo::selected(Role::DisclosureTriangle, true, open, title));
    let p = palette(ui);
    if response.hovered() {
        ui.painter().rect_filled(rect.expand2(vec2(6.0, 0.0)), RADIUS, p.hover.gamma_multiply(0.5));
    }
    focus_ring(ui, &response, RADIUS);
    ui.painter().text(rect.left_center(), Align2::LEFT_CENTER, title, theme::section(), p.text);
    let place = Align2::RIGHT_CENTER.anchor_size(rect.right_center(), vec2(16.0, 16.0));
    if open { Icon::Less } else { Icon::More }.paint(ui.painter(), place, p.weak);
    response
}

/// A list to choose from, with the arrow of all others.
pub fn combo(salt: &str, width: f32) -> ComboBox<'static> {
    ComboBox::from_id_salt(salt).width(width).icon(|ui: &Ui, rect: Rect, visuals: &WidgetVisuals, _open: bool| {
        Icon::More.paint(ui.painter(), rect, visuals.fg_stroke.color);
    })
}

/// Draws a ring around what the keyboard is on.
pub(super) fn focus_ring(ui: &Ui, response: &Response, radius: CornerRadius) {
    if response.has_focus() {
        let stroke = Stroke::new(2.0, palette(ui).accent);
        ui.painter().rect_stroke(response.rect.expand(1.0), radius, stroke, StrokeKind::Outside);
    }
}

fn tip(response: Response, text: &str) -> Response {
    if text.is_empty() { response } else { response.on_hover_text(text).on_disabled_hover_text(text) }
}

fn paint(ui: &mut Ui, icon: Option<Icon>, label: &str, coat: &Coat, cut: Cut) -> Response {
    let text: WidgetText = label.into();
    let galley = text.into_galley(ui, Some(TextWrapMode::Extend), f32::INFINITY, cut.font);
    let icon_width = if icon.is_some() { 16.0 + 6.0 } else { 0.0 };
    let size = vec2(galley.size().x + icon_width + 2.0 * cut.pad, cut.height);
    let (rect, response) = ui.allocate_exact_size(size, Sense::click());
    let enabled = ui.is_enabled();
    response.widget_info(|| WidgetInfo::labeled(Role::Button, enabled, label));
    let pressed = response.is_pointer_button_down_on();
    // What is disabled is faded by the painter.
    let (fill, color) =
        if enabled && (response.hovered() || pressed) { (coat.hover, coat.text) } else { (coat.fill, coat.text) };
    let painted = if pressed { rect.shrink(0.5) } else { rect };
    ui.painter().rect(painted, RADIUS, fill, Stroke::new(1.0, coat.line), StrokeKind::Inside);
    focus_ring(ui, &response, RADIUS);
    let mut x = rect.left() + cut.pad;
    if let Some(icon) = icon {
        let place = Align2::LEFT_CENTER.anchor_size(pos2(x, rect.center().y), vec2(16.0, 16.0));
        icon.paint(ui.painter(), place, color);
        x += icon_width;
    }
    ui.painter().galley(pos2(x, rect.center().y - galley.size().y / 2.0), galley, color);
    response
}
