// amqp091-go: publisher confirms, a worker that rejects, retries by a quorum queue's delivery limit, dead letters.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	connection, err := amqp.Dial(os.Args[1])
	must(err)
	defer connection.Close()
	channel, err := connection.Channel()
	must(err)
	must(channel.Qos(1, 0, false))
	must(channel.Confirm(false))
	_, err = channel.QueueDeclare("go.dead", true, false, false, false, nil)
	must(err)
	_, err = channel.QueueDeclare("go.jobs", true, false, false, false, amqp.Table{
		"x-queue-type":              "quorum",
		"x-delivery-limit":          int32(2),
		"x-dead-letter-exchange":    "",
		"x-dead-letter-routing-key": "go.dead",
	})
	must(err)
	jobs, err := channel.Consume("go.jobs", "", false, false, false, false, nil)
	must(err)
	dead, err := channel.Consume("go.dead", "", true, false, false, false, nil)
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, name := range []string{"plain", "shaky", "poison"} {
		message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(name)}
		confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, "", "go.jobs", true, false, message)
		must(err)
		if !confirm.Wait() {
			must(fmt.Errorf("%s was not confirmed", name))
		}
	}
	done, tries := []string{}, map[string]int{}
	for {
		select {
		case job := <-jobs:
			name := string(job.Body)
			tries[name]++
			if name == "poison" || (name == "shaky" && tries[name] == 1) {
				must(job.Nack(false, true))
			} else {
				done = append(done, name)
				must(job.Ack(false))
			}
		case letter := <-dead:
			death := letter.Headers["x-death"].([]interface{})[0].(amqp.Table)
			sort.Strings(done)
			found := map[string]interface{}{
				"done": done, "tries": tries, "dead": []string{string(letter.Body)}, "reason": death["reason"],
			}
			must(json.NewEncoder(os.Stdout).Encode(found))
			return
		case <-ctx.Done():
			must(ctx.Err())
		}
	}
}
