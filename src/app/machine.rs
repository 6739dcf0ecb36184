//! What this machine and this process are up to: how busy it is, how much memory is taken.

/// How many programs wanted a core during the last minute; 0 where the system does not say.
pub fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

/// The largest resident size of this process so far; 0 where the system does not say.
pub fn peak_rss_bytes() -> u64 {
    status_bytes("VmHWM:")
}

/// Memory of this process that is not that of its files; 0 where the system does not say.
pub fn own_memory_bytes() -> u64 {
    status_bytes("RssAnon:")
}

fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
