//! What small writes cost, from the results.

use fipsee_measure::plot::rate;

use super::{CLIENTS, Client, DISK_512, Load, TestDevice, name};
use crate::table::{IOPS, P50, Results};

const LOADS: [Load; 4] = [
    DISK_512,
    Load { place: TestDevice::SmallSectors, block_bytes: 512 },
    Load { place: TestDevice::LargeSectors, block_bytes: 4096 },
    Load { place: TestDevice::LargeSectors, block_bytes: 512 },
];

/// Requests per second of our `of` over those of `to`, the median of pairs.
fn ratio(results: &Results, of: &str, to: &str) -> Option<f64> {
    Some(results.get(of, IOPS)?.ratio_to(results.get(to, IOPS)?))
}

/// Ours over fio's under one load: the lower of the ratios to its two ways.
pub(crate) fn over_fio(results: &Results, load: &Load) -> Option<f64> {
    let fios = CLIENTS.iter().filter(|client| **client != Client::FipSee);
    let ratios = fios.filter_map(|client| ratio(results, &name(Client::FipSee, load), &name(*client, load)));
    ratios.reduce(f64::min)
}

/// Ready for a document.
pub(super) fn markdown(results: &Results) -> String {
    let mut text = "| 64 random writes at a time | size | Fip-see | p50 | fio, io_uring | p50 | Fip-see over fio |\n\
                    |---|---|---|---|---|---|---|\n"
        .to_owned();
    for load in LOADS {
        let rate_of = |client| results.get(&name(client, &load), IOPS).map(|series| series.median());
        let p50_of = |client| {
            let series = results.get(&name(client, &load), P50);
            series.map_or("-".to_owned(), |series| format!("{:.0} us", series.median() / 1e3))
        };
        let fios = CLIENTS.into_iter().filter(|client| *client != Client::FipSee);
        let best = fios.filter_map(|client| Some((client, rate_of(client)?))).max_by(|a, b| a.1.total_cmp(&b.1));
        let ours = rate_of(Client::FipSee);
        if ours.is_none() && best.is_none() {
            continue;
        }
        let figure = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{}/s", rate(value)));
        let over = over_fio(results, &load).map_or("-".to_owned(), |value| format!("{value:.2}"));
        text += &format!(
            "| {} | {} B | {} | {} | {} | {} | {over} |\n",
            load.place.text(),
            load.block_bytes,
            figure(ours),
            p50_of(Client::FipSee),
            figure(best.map(|(_, value)| value)),
            best.map_or("-".to_owned(), |(client, _)| p50_of(client)),
        );
    }
    text + &cost(results)
}

/// The price of read-modify-write, in words.
fn cost(results: &Results) -> String {
    let [_, small, whole, modified] = LOADS.map(|load| name(Client::FipSee, &load));
    let times = |of: &str| ratio(results, of, &modified).map(|ratio| format!("{ratio:.2}"));
    match (times(&whole), times(&small)) {
        (Some(whole), Some(small)) => format!(
            "\nWhere the device takes no less than 4 KiB, a write of 512 B takes {whole} times as long as one of 4 KiB there, and \
             {small} times as long as one of 512 B where the device takes that (time per request with 64 in flight, medians of pairs).\n"
        ),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims;

    fn results(rates: &[(Client, Load, f64)]) -> Results {
        let mut results = Results::default();
        for (client, load, rate) in rates {
            results.add(&name(*client, load), IOPS, *rate);
            results.add(&name(*client, load), P50, 64e9 / rate);
        }
        results
    }

    #[test]
    fn claim_is_about_the_better_of_fios_ways() {
        let slower_beside = |batches| {
            let rates =
                [(Client::FipSee, DISK_512, 95e3), (Client::Fio, DISK_512, 100e3), (Client::FioInBatches, DISK_512, batches)];
            claims::of_small_writes(&results(&rates))[0].holds()
        };
        assert_eq!(slower_beside(90e3), Some(true), "95 of 100");
        assert_eq!(slower_beside(110e3), Some(false), "95 of 110");
        assert_eq!(claims::of_small_writes(&Results::default())[0].holds(), None);
    }

    #[test]
    fn table_has_the_loads_that_were_measured_and_the_cost_of_modifying() {
        let [disk, small, whole, modified] = LOADS;
        let rates = [
            (Client::FipSee, disk, 95e3),
            (Client::Fio, disk, 100e3),
            (Client::FipSee, small, 300e3),
            (Client::FipSee, whole, 200e3),
            (Client::FioInBatches, whole, 160e3),
            (Client::FipSee, modified, 50e3),
        ];
        let text = markdown(&results(&rates));
        assert!(text.contains("| 512 B | 95 k/s | 674 us | 100 k/s | 640 us | 0.95 |"), "{text}");
        assert!(text.contains("| 4096 B | 200 k/s | 320 us | 160 k/s | 400 us | 1.25 |"), "{text}");
        assert!(text.contains("| 512 B | 50 k/s | 1280 us | - | - | - |"), "{text}");
        assert!(text.contains("takes 4.00 times as long as one of 4 KiB there") && text.contains("6.00 times"), "{text}");
        assert_eq!(markdown(&results(&rates[..2])).lines().count(), 3, "only the disk, and no cost");
    }
}
