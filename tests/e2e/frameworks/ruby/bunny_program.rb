# Bunny: a worker in the manner of Sneakers. A rejected job waits in a retry queue with a time to live, comes back by
# dead-lettering, and goes to an error queue after two retries, counted in x-death.
require "bunny"
require "json"

connection = Bunny.new(ARGV[0], log_level: :error)
connection.start
channel = connection.create_channel
channel.prefetch(1)
channel.confirm_select
retries = channel.topic("bunny.jobs-retry", durable: true)
requeue = channel.topic("bunny.jobs-retry-requeue", durable: true)
errors = channel.topic("bunny.jobs-error", durable: true)
waiting = channel.queue(
  "bunny.jobs-retry", durable: true,
  arguments: { "x-dead-letter-exchange" => requeue.name, "x-message-ttl" => 20 }
)
waiting.bind(retries, routing_key: "#")
dead = channel.queue("bunny.jobs-error", durable: true)
dead.bind(errors, routing_key: "#")
jobs = channel.queue("bunny.jobs", durable: true, arguments: { "x-dead-letter-exchange" => retries.name })
jobs.bind(requeue, routing_key: "#")

done = []
tries = Hash.new(0)
letters = Queue.new
jobs.subscribe(manual_ack: true) do |delivery, properties, body|
  tries[body] += 1
  deaths = (properties.headers || {}).fetch("x-death", [])
  rejected = deaths.select { |death| death["queue"] == jobs.name && death["reason"] == "rejected" }
  count = rejected.sum { |death| death["count"] }
  if body != "poison" && !(body == "shaky" && tries[body] == 1)
    done << body
    channel.ack(delivery.delivery_tag)
  elsif count < 2
    channel.reject(delivery.delivery_tag, false)
  else
    errors.publish(body, routing_key: jobs.name, persistent: true, headers: { "retry_count" => count })
    channel.ack(delivery.delivery_tag)
  end
end
dead.subscribe { |_, properties, body| letters << [body, properties.headers["retry_count"]] }

%w[plain shaky poison].each { |name| channel.default_exchange.publish(name, routing_key: jobs.name, persistent: true) }
raise "not confirmed" unless channel.wait_for_confirms

letter, retried = letters.pop
connection.close
puts JSON.generate("done" => done.sort, "tries" => tries, "dead" => [letter], "retried" => retried)
