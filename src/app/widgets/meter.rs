//! A level meter: how loud the microphone hears.

use eframe::egui::{Rect, Response, Role, Sense, Ui, WidgetInfo, pos2, vec2};

use crate::theme::palette;

/// Quietest level that is shown.
const FLOOR_DB: f32 = -60.0;

/// Shows a level of 0 to 1 on a scale of decibels.
pub fn meter(ui: &mut Ui, level: f32) -> Response {
    let (rect, response) = ui.allocate_exact_size(vec2(ui.available_width(), 6.0), Sense::hover());
    let db = 20.0 * level.max(1e-6).log10();
    response.widget_info(|| WidgetInfo::labeled(Role::ProgressIndicator, true, format!("Level {db:.0} dB")));
    let p = palette(ui);
    ui.painter().rect_filled(rect, 3.0, p.line);
    let share = (1.0 - db / FLOOR_DB).clamp(0.0, 1.0);
    let filled = Rect::from_min_max(rect.min, pos2(rect.left() + rect.width() * share, rect.bottom()));
    let color = match db {
        d if d > -1.0 => p.bad,
        d if d > -6.0 => p.warn,
        _ => p.good,
    };
    ui.painter().rect_filled(filled, 3.0, color);
    response
}
