<?php
// php-amqplib: publisher confirms, a worker that rejects, retries by a quorum queue's delivery limit, dead letters.
require_once '/usr/share/php/PhpAmqpLib/autoload.php';

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

$url = parse_url($argv[1]);
$connection = new AMQPStreamConnection($url['host'], $url['port'], $url['user'], $url['pass'], '/');
$channel = $connection->channel();
$channel->basic_qos(0, 1, false);
$channel->confirm_select();
$channel->queue_declare('php.dead', false, true, false, false);
$channel->queue_declare('php.jobs', false, true, false, false, false, new AMQPTable([
    'x-queue-type' => 'quorum',
    'x-delivery-limit' => 2,
    'x-dead-letter-exchange' => '',
    'x-dead-letter-routing-key' => 'php.dead',
]));

$done = [];
$tries = [];
$letter = null;
$channel->basic_consume('php.jobs', '', false, false, false, false, function (AMQPMessage $job) use (&$done, &$tries) {
    $name = $job->getBody();
    $tries[$name] = ($tries[$name] ?? 0) + 1;
    if ($name === 'poison' || ($name === 'shaky' && $tries[$name] === 1)) {
        $job->nack(true);
    } else {
        $done[] = $name;
        $job->ack();
    }
});
$channel->basic_consume('php.dead', '', false, true, false, false, function (AMQPMessage $dead) use (&$letter) {
    $letter = $dead;
});
foreach (['plain', 'shaky', 'poison'] as $name) {
    $properties = ['delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT];
    $channel->basic_publish(new AMQPMessage($name, $properties), '', 'php.jobs');
}
$channel->wait_for_pending_acks(60);
while ($letter === null) {
    $channel->wait(null, false, 60);
}
$headers = $letter->get('application_headers')->getNativeData();
$channel->close();
$connection->close();
sort($done);
echo json_encode([
    'done' => $done, 'tries' => $tries, 'dead' => [$letter->getBody()], 'reason' => $headers['x-death'][0]['reason'],
]), "\n";
