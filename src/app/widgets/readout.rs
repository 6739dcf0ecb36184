//! Figures with their names, and the bar that shows where the time went.

use eframe::egui::{Align2, CornerRadius, Rect, Response, RichText, Role, Sense, Ui, WidgetInfo, pos2, vec2};
use myna_engine::protocol::StageTimes;

use crate::theme::{self, palette};

const STAGES: [&str; 6] = ["Voice", "Prefill", "T3", "Flow", "Vocoder", "Watermark"];

/// Keeps what follows in an area that scrolls away from its bar, which lies in the margin of the panel.
pub fn keep_from_bar(ui: &mut Ui) {
    ui.set_max_width(ui.available_width() - f32::from(theme::SCROLL_MARGIN));
}

/// The title of a group of controls.
pub fn section(ui: &mut Ui, title: &str) -> Response {
    ui.label(RichText::new(title).font(theme::section()).color(palette(ui).text))
}

/// How much of something is done, 0 to 1; `what` is being done, for screen readers.
pub fn progress(ui: &mut Ui, width: f32, fraction: f32, what: &str) {
    let (rect, response) = ui.allocate_exact_size(vec2(width, 6.0), Sense::hover());
    let percent = (fraction * 100.0).round();
    response.widget_info(|| WidgetInfo::labeled(Role::ProgressIndicator, true, format!("{what} {percent} %")));
    let p = palette(ui);
    ui.painter().rect_filled(rect, 3.0, p.line);
    let done = Rect::from_min_size(rect.min, vec2(rect.width() * fraction.clamp(0.02, 1.0), rect.height()));
    ui.painter().rect_filled(done, 3.0, p.accent);
}

/// A stretch of time in few letters, given in milliseconds.
pub fn short_time(ms: f64) -> String {
    if ms < 999.5 { format!("{ms:.0} ms") } else { format!("{:.1} s", ms / 1e3) }
}

/// A figure over its name; `None` is a dash.
pub fn readout(ui: &mut Ui, name: &str, value: Option<String>, width: f32, tip: &str) -> Response {
    let (rect, response) = ui.allocate_exact_size(vec2(width, 36.0), Sense::hover());
    let shown = value.as_deref().unwrap_or("–");
    response.widget_info(|| WidgetInfo::labeled(Role::Label, true, format!("{name} {shown}")));
    let p = palette(ui);
    let color = if value.is_some() { p.text } else { p.faint };
    ui.painter().text(rect.left_top(), Align2::LEFT_TOP, shown, theme::figure(), color);
    ui.painter().text(rect.left_bottom(), Align2::LEFT_BOTTOM, name, theme::caption(), p.weak);
    response.on_hover_text(tip)
}

/// Work per stage, as parts of one bar.
pub fn stage_bar(ui: &mut Ui, stages: Option<&StageTimes>, width: f32) -> Response {
    let parts = stages.map_or([0.0; 6], |s| [s.voice, s.prefill, s.t3, s.flow, s.vocoder, s.watermark]);
    let total: f64 = parts.iter().sum();
    let (rect, response) = ui.allocate_exact_size(vec2(width, 36.0), Sense::hover());
    let spoken = STAGES.iter().zip(parts).filter(|(_, ms)| *ms > 0.0).map(|(n, ms)| format!("{n} {ms:.0} ms"));
    let spoken = spoken.collect::<Vec<_>>().join(", ");
    response.widget_info(|| WidgetInfo::labeled(Role::Label, true, format!("Work per stage: {spoken}")));
    let p = palette(ui);
    let bar = Rect::from_min_size(pos2(rect.left(), rect.top() + 5.0), vec2(width, 8.0));
    ui.painter().rect_filled(bar, 4.0, p.line);
    if total > 0.0 {
        let mut x = bar.left();
        for (ms, color) in parts.into_iter().zip(p.stages) {
            let w = (ms / total) as f32 * bar.width();
            if w > 0.5 {
                let part = Rect::from_min_max(pos2(x, bar.top()), pos2((x + w - 1.0).max(x + 0.5), bar.bottom()));
                ui.painter().rect_filled(part, CornerRadius::same(2), color);
            }
            x += w;
        }
    }
    let most = STAGES.iter().zip(parts).filter(|_| total > 0.0).max_by(|a, b| a.1.total_cmp(&b.1));
    let caption = most.map_or_else(
        || "Work per stage".to_owned(),
        |(name, ms)| format!("Work, most in {name} ({:.0} %)", 100.0 * ms / total),
    );
    ui.painter().text(rect.left_bottom(), Align2::LEFT_BOTTOM, caption, theme::caption(), p.weak);
    response.on_hover_ui(|ui| {
        for ((name, ms), color) in STAGES.iter().zip(parts).zip(p.stages) {
            ui.horizontal(|ui| {
                let (dot, _) = ui.allocate_exact_size(vec2(10.0, 10.0), Sense::hover());
                ui.painter().circle_filled(dot.center(), 4.0, color);
                ui.label(format!("{name}  {ms:.0} ms"));
            });
        }
    })
}
