//! How the daemon is started, configured, reloaded and placed, which clients it takes, and how they wait.

mod admin_protocol;
mod attach_refusals;
mod choices;
mod config_file;
mod config_memory;
mod config_users;
mod disk_limits;
mod disks_at_run_time;
mod event_loop;
mod example;
mod fatal;
mod hostile_control;
mod metrics;
mod moves;
mod notify;
mod placement;
mod refused_changes;
mod reload;
mod scaling;
mod service_manager;
mod sockets;
mod start_refusals;
mod users;
mod visible;
mod waiting;
